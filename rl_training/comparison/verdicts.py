"""What a comparison of two groups says, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rl_training.comparison.group_statistics import GroupStatistics
from rl_training.comparison.significance import (
    compute_p_value,
    correct_p_values,
    count_seeds_needed,
    find_least_p_value,
    find_least_seeds,
)
from rl_training.comparison.statistics import Estimate, Floats, compute_iqm, estimate, estimate_improvement

Finding = Literal["better", "worse", "unclear"]

MOST_SEEDS = 1_000
"""Beyond this many seeds, a message does not name the number."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a group with the reference."""

    group: str
    reference: str
    finding: Finding
    """Whether the group is better or worse than the reference, or neither can be said at the chosen confidence."""
    text: str
    """The finding in words."""
    improvement: Estimate
    """The probability that a run of the group scores above a run of the reference; the interval is not corrected."""
    iqm_difference: Estimate
    """The interquartile mean of the group minus that of the reference."""
    p_value: float
    corrected_p_value: float
    """After Holm's correction for the number of comparisons."""
    seeds_needed: int | None
    """Seeds a group that would tell the two apart, if they differ as much as they seem to; None if they seem equal, or
    if one of them has a single seed."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if not isinstance(value, Estimate)},
            "improvement": self.improvement.to_dict(),
            "iqm_difference": self.iqm_difference.to_dict(),
        }


@dataclass(frozen=True)
class _Test:
    """The test of a group against the reference."""

    p_value: float
    corrected: float
    least_corrected: float
    """The least corrected p-value that groups of these sizes can have: if no group's scores overlap the reference's."""
    comparisons: int


def compare_groups(groups: Sequence[GroupStatistics], confidence: float) -> list[Verdict]:
    """Returns the comparison of each further group with the first, which is the reference.

    Args:
        groups: At least one group.
        confidence: The confidence of the intervals, and one minus the level of the corrected tests together.
    """
    reference, *others = groups
    p_values = [compute_p_value(other.scores, reference.scores) for other in others]
    least = [find_least_p_value(len(other.scores), len(reference.scores)) for other in others]
    tests = zip(p_values, correct_p_values(p_values), correct_p_values(least), strict=True)
    return [
        _compare(other, reference, _Test(*values, comparisons=len(others)), confidence)
        for other, values in zip(others, tests, strict=True)
    ]


def _compare(group: GroupStatistics, reference: GroupStatistics, test: _Test, confidence: float) -> Verdict:
    x, y = group.scores, reference.scores
    level = round(1 - confidence, 12)  # else 1 - 0.9 is below the p-value of 3 and 3 scores that do not overlap, 0.1
    improvement = estimate_improvement(x, y, confidence=confidence)
    single = min(len(x), len(y)) == 1
    seeds = None if single else count_seeds_needed(x, y, level=level, comparisons=test.comparisons)
    finding: Finding = "unclear"
    if test.corrected <= level:
        finding = "better" if improvement.value > 0.5 else "worse"
    verdict = Verdict(
        group.group.name,
        reference.group.name,
        finding,
        "",
        improvement,
        estimate(_subtract_iqms, x, y, confidence=confidence),
        test.p_value,
        test.corrected,
        seeds,
    )
    return replace(verdict, text=_describe(verdict, group, reference, level, test))


def _subtract_iqms(x: Floats, y: Floats) -> Floats:
    difference: Floats = compute_iqm(x) - compute_iqm(y)
    return difference


def _describe(verdict: Verdict, group: GroupStatistics, reference: GroupStatistics, level: float, test: _Test) -> str:
    names = f"{verdict.reference} and {verdict.group}"
    single = [each.group.name for each in (reference, group) if len(each.scores) == 1]
    if single:
        least = find_least_seeds(level / test.comparisons)
        return (
            f"nothing can be concluded about {names}, because {' and '.join(single)} "
            f"{'have' if len(single) > 1 else 'has'} a single seed: train at least {least} seeds each"
        )
    if np.ptp(np.concatenate([group.scores, reference.scores])) == 0.0:
        return f"{names} are equal: every run scores {format_number(float(group.scores[0, 0]))}"
    numbers = (
        f"probability of improvement {format_estimate(verdict.improvement, 2)}, {_format_p(verdict, test.comparisons)}"
    )
    if verdict.finding != "unclear":
        return f"{verdict.group} is {verdict.finding} than {verdict.reference}: {numbers}{_find_contradiction(verdict)}"
    if test.least_corrected > level:
        sizes = f"{len(reference.scores)} and {len(group.scores)} seeds"
        return (
            f"{names} can't be told apart: {numbers}; {sizes} can't show a difference at this confidence, whatever "
            f"their scores{_advise(verdict)}"
        )
    return f"{names} can't be told apart: {numbers}{_advise(verdict)}"


def _advise(verdict: Verdict) -> str:
    """Returns how many seeds would be needed, as the end of a sentence."""
    if verdict.seeds_needed is None:
        return "; they seem to be equally good, so no number of seeds would tell"
    number = f"about {verdict.seeds_needed}" if verdict.seeds_needed <= MOST_SEEDS else f"more than {MOST_SEEDS:,}"
    return f"; {number} seeds each would be needed if they differ as much as they seem to"


def _find_contradiction(verdict: Verdict) -> str:
    """Returns a warning if the group that wins more often has the lower interquartile mean."""
    if (verdict.improvement.value - 0.5) * verdict.iqm_difference.value >= 0:
        return ""
    return ", although its interquartile mean is " + ("lower" if verdict.finding == "better" else "higher")


def _format_p(verdict: Verdict, comparisons: int) -> str:
    p = verdict.corrected_p_value
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
    return shown + (f" after correction for {comparisons} comparisons" if comparisons > 1 else "")


def format_estimate(estimate: Estimate, digits: int | None = None) -> str:
    """Returns an estimate and its interval as text, with as many digits as the largest needs: `0.93 [0.81, 1.00]`."""
    numbers = [value for value in (estimate.value, estimate.low, estimate.high) if value is not None]
    digits = _choose_digits(max(map(abs, numbers))) if digits is None else digits
    value, *ends = (format_number(number, digits) for number in numbers)
    return f"{value} [{', '.join(ends)}]" if ends else value


def format_number(value: float, digits: int | None = None) -> str:
    """Returns a number as text, by default with four significant digits or all digits before the point."""
    if value != 0 and not 1e-4 <= abs(value) < 1e9 and digits is None:
        return f"{value:.4g}"
    return f"{value:,.{_choose_digits(abs(value)) if digits is None else digits}f}"


def _choose_digits(value: float) -> int:
    """Returns the number of digits after the point with which a number has four significant digits."""
    return min(6, max(0, 3 - math.floor(math.log10(value)))) if value > 0 else 0
