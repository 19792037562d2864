"""Schedules: pure functions of the training's progress, so that a resume can't shift them."""

from __future__ import annotations

from typing import Literal


def annealed(start: float, schedule: Literal["constant", "linear"], progress: float) -> float:
    """Returns a scheduled value: `start`, or linearly from `start` to 0 as progress goes from 0 to 1."""
    return start * (1.0 - progress) if schedule == "linear" else start
