"""Checks the arguments with which callbacks reach into environments, alike for every kind of vector environment."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

from rl_training.errors import UserError, error_line


def spread(values: Any, num_envs: int) -> list[Any]:
    """Returns a value for each environment, from one for all or a list or tuple with one for each.

    Raises:
        UserError: A list has another length.
    """
    if not isinstance(values, list | tuple):
        return [values] * num_envs
    if len(values) != num_envs:
        raise UserError(
            f"got {len(values)} values for {num_envs} environments; pass one value, or a list with one for each (to "
            f"set the same list in all of them: [value] * {num_envs})"
        )
    return list(values)


def require_sendable(command: str, calls: Mapping[int, tuple[Any, ...]]) -> None:
    """Checks that the arguments of calls can be sent to a worker process, before any worker is asked.

    Raises:
        UserError: They can't be pickled.
    """
    try:
        pickle.dumps(calls)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UserError(
            f"{command}: the arguments can't be sent to worker processes ({error_line(error)}); pass plain data, or "
            f"set vectorization to sync"
        ) from error


def to_reset_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns reset options as a checkpoint holds them: JSON data, with lists for tuples.

    Raises:
        UserError: They are no mapping of text to plain data.
    """
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise UserError(f"reset options: got {options!r}; expected a mapping from text to plain data")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(options)))
    except (TypeError, ValueError) as error:
        raise UserError(f"reset options: {error_line(error)}; expected numbers, text, and lists of these") from error
    return plain
