"""The gate: decides from paired episodes whether a candidate becomes champion.

The decision is a pure function of two result tables and the rules, so it can be checked by hand and by simulation. The
gate computes one-sided Student t bounds of the mean paired difference and of the candidate's mean, and lowers them if
the returns are skewed. Pairing the episodes by seed removes the luck of the initial state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit  # type: ignore[import-untyped]

from rl_training.config.sections import PromotionConfig
from rl_training.runtime.evaluation import EvaluationResult

VerdictKind = Literal["PROMOTE", "HOLD", "REJECT"]


@dataclass(frozen=True)
class Verdict:
    """The decision of the gate."""

    kind: VerdictKind
    """PROMOTE: the candidate becomes champion. HOLD: there is not enough evidence that it is better. REJECT: it is
    worse than the champion or does not reach a floor."""
    reasons: tuple[str, ...]
    """Sentences with the numbers in them."""
    numbers: dict[str, float]
    """The numbers behind the reasons."""


def decide(candidate: EvaluationResult, champion: EvaluationResult | None, rules: PromotionConfig) -> Verdict:
    """Decides whether the candidate becomes champion.

    Args:
        candidate: The candidate's episodes.
        champion: The champion's episodes on the same seeds; None if there is no champion, so that only the floors
            decide.
        rules: Floors, number of episodes, confidence and margin.

    Raises:
        ValueError: Candidate and champion were played on different seeds.
    """
    if champion is not None and candidate.seeds != champion.seeds:
        raise ValueError("candidate and champion were not played on the same episode seeds: there is nothing to pair")
    numbers = {
        "episodes": float(candidate.episodes),
        "confidence": rules.confidence,
        "candidate_mean": candidate.return_mean,
    }
    if candidate.episodes < rules.episodes:
        reason = f"{candidate.episodes} episodes were played, and the rules ask for at least {rules.episodes}"
        return Verdict("HOLD", (reason,), numbers)

    reached, reasons = _check_floors(candidate, rules, numbers)
    if not reached:
        return Verdict("REJECT", tuple(reasons), numbers)
    if champion is None:
        return Verdict("PROMOTE", (*reasons, "there is no champion yet"), numbers)
    kind, reason = _compare(candidate, champion, rules, numbers)
    return Verdict(kind, (*reasons, reason), numbers)


def compute_lower_bound(values: Sequence[float], confidence: float) -> float:
    """Returns the one-sided lower confidence bound of the mean: m - t(n - 1, confidence) * s / sqrt(n), or less.

    If the values are skewed to the left (a few failures among successes), that bound is too high, because a sample
    with few failures has both a high mean and a small spread. In this case Johnson's correction lowers the bound. It
    would raise the bound of values skewed to the right, so it is not applied there. The bound of equal values is the
    value itself.

    Args:
        values: At least two values, unless all are equal.
        confidence: Between 0 and 1.
    """
    n = len(values)
    if all(value == values[0] for value in values):
        return values[0]
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    third_moment = math.fsum((value - mean) ** 3 for value in values) / n
    quantile = float(stdtrit(n - 1, confidence))
    correction = third_moment / variance * (1 + 2 * quantile**2) / (6 * n)
    return mean - quantile * math.sqrt(variance / n) + min(0.0, correction)


def _check_floors(
    candidate: EvaluationResult, rules: PromotionConfig, numbers: dict[str, float]
) -> tuple[bool, list[str]]:
    """Returns whether the candidate reaches both floors and the reasons; adds their numbers to `numbers`."""
    numbers["candidate_lower"] = lower = compute_lower_bound(candidate.returns, rules.confidence)
    reached, reasons = True, []
    if rules.floor is not None:
        numbers["floor"] = rules.floor
        reached = lower >= rules.floor
        reasons.append(
            f"the candidate's mean return is {candidate.return_mean:.6g}, at least {lower:.6g} with "
            f"{_format_percent(rules)} confidence, which {_format_reached(reached)} the floor of {rules.floor:.6g}"
        )
    numbers["worst_return"] = worst = min(candidate.returns)
    if rules.worst_episode is not None:
        numbers["worst_episode"] = rules.worst_episode
        seed = candidate.seeds[candidate.returns.index(worst)]
        reasons.append(
            f"the candidate's worst episode, of seed {seed}, returned {worst:.6g}, which "
            f"{_format_reached(worst >= rules.worst_episode)} the floor of {rules.worst_episode:.6g} for each episode"
        )
        reached = reached and worst >= rules.worst_episode
    return reached, reasons


def _compare(
    candidate: EvaluationResult, champion: EvaluationResult, rules: PromotionConfig, numbers: dict[str, float]
) -> tuple[VerdictKind, str]:
    """Returns the verdict on the paired differences and its reason; adds their numbers to `numbers`."""
    differences = [a - b for a, b in zip(candidate.returns, champion.returns, strict=True)]
    low = compute_lower_bound(differences, rules.confidence)
    high = -compute_lower_bound([-difference for difference in differences], rules.confidence)
    mean = math.fsum(differences) / len(differences)
    numbers |= {
        "champion_mean": champion.return_mean,
        "difference_mean": mean,
        "difference_lower": low,
        "difference_upper": high,
        "margin": rules.margin,
    }
    kind: VerdictKind = "PROMOTE" if low > rules.margin else "REJECT" if high < 0 else "HOLD"
    percent, margin = _format_percent(rules), f"the margin of {rules.margin:.6g}"
    compared = {
        "PROMOTE": f"at least {low:.6g} with {percent} confidence, which is above {margin}",
        "HOLD": f"at least {low:.6g} with {percent} confidence, which is not above {margin}: "
        f"ties and doubt keep the champion",
        "REJECT": f"at most {high:.6g} with {percent} confidence: the candidate is worse",
    }
    reason = (
        f"on the same {candidate.episodes} episodes the candidate's mean return is {candidate.return_mean:.6g} and the "
        f"champion's {champion.return_mean:.6g}; the difference is {mean:.6g}, {compared[kind]}"
    )
    return kind, reason


def _format_percent(rules: PromotionConfig) -> str:
    return f"{100 * rules.confidence:g} %"


def _format_reached(reached: bool) -> str:
    return "reaches" if reached else "does not reach"
