"""Formats the numbers of the tables."""

from __future__ import annotations

from collections.abc import Sequence


def format_spread(values: Sequence[float | None], unit: str = "") -> str:
    """Returns `median (lowest to highest)`."""
    middle, lowest, highest = (format_number(value) for value in values)
    return f"{middle}{unit} ({lowest} to {highest})"


def format_number(value: float | None) -> str:
    """Returns a number with at least three significant digits; None becomes `never`."""
    if value is None:
        return "never"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
