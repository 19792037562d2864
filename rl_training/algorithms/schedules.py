"""Schedules, which are pure functions of the training progress, so that a resume can't shift them."""

from __future__ import annotations

from typing import Literal


def anneal(start: float, schedule: Literal["constant", "linear"], progress: float) -> float:
    """Returns `start`, or with `linear` a value that falls from `start` to 0 while progress rises from 0 to 1."""
    return start * (1.0 - progress) if schedule == "linear" else start
