"""Reads an age such as `30d`."""

from __future__ import annotations

import re
from datetime import timedelta

from rl_training.errors import UserError

_AGE = re.compile(r"(\d+)([dh])")


def read_age(text: str) -> timedelta:
    """Returns the age that a text such as `30d` or `12h` names.

    Raises:
        UserError: It names none.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UserError(f"got the age {text!r}, expected a number of days or hours such as 30d or 12h")
    number, unit = int(found[1]), found[2]
    try:
        return timedelta(days=number) if unit == "d" else timedelta(hours=number)
    except OverflowError:
        raise UserError(f"got the age {text!r}, expected at most {timedelta.max.days} days") from None
