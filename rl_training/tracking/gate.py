"""The gate to the champion alias: evidence from paired episodes, and nothing else.

A pure function of two result tables and the rules, so that what it decides can be checked by hand and by simulation.
The bounds are one-sided Student t bounds: of the mean of the paired differences (the same episode seeds for both, which
takes the luck of the start out of the comparison), and of the candidate's own mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit  # type: ignore[import-untyped]

from rl_training.config.settings import PromotionConfig
from rl_training.runtime.evaluation import EvaluationResult

VerdictKind = Literal["PROMOTE", "HOLD", "REJECT"]


@dataclass(frozen=True)
class Verdict:
    """What the gate decided."""

    kind: VerdictKind
    """PROMOTE: the candidate becomes champion. HOLD: there is not enough evidence that it is better. REJECT: there is
    evidence that it is not good enough, or worse."""
    reasons: tuple[str, ...]
    """Sentences with the numbers in them."""
    numbers: dict[str, float]
    """The numbers behind the reasons."""


def decide(candidate: EvaluationResult, champion: EvaluationResult | None, rules: PromotionConfig) -> Verdict:
    """Decides whether the candidate becomes champion.

    Args:
        candidate: Its episodes.
        champion: The champion's, on the same seeds; None where there is no champion, and the floor alone decides.
        rules: Floor, episodes, confidence and margin.

    Raises:
        ValueError: The two were not played on the same seeds.
    """
    if champion is not None and candidate.seeds != champion.seeds:
        raise ValueError("candidate and champion were not played on the same episode seeds: there is nothing to pair")
    percent = f"{100 * rules.confidence:g} %"
    numbers = {
        "episodes": float(candidate.episodes),
        "confidence": rules.confidence,
        "candidate_mean": candidate.return_mean,
    }
    if candidate.episodes < rules.episodes:
        reason = f"{candidate.episodes} episodes were played, and the rules ask for at least {rules.episodes}"
        return Verdict("HOLD", (reason,), numbers)

    reasons = []
    numbers["candidate_lower"] = lower = lower_bound(candidate.returns, rules.confidence)
    if rules.floor is not None:
        numbers["floor"] = rules.floor
        holds = lower >= rules.floor
        reasons.append(
            f"the candidate's mean return is {candidate.return_mean:.6g}, at least {lower:.6g} with {percent} "
            f"confidence, which {'reaches' if holds else 'does not reach'} the floor of {rules.floor:.6g}"
        )
        if not holds:
            return Verdict("REJECT", tuple(reasons), numbers)
    if champion is None:
        reasons.append("there is no champion yet")
        return Verdict("PROMOTE", tuple(reasons), numbers)

    differences = [a - b for a, b in zip(candidate.returns, champion.returns, strict=True)]
    low, high = lower_bound(differences, rules.confidence), -lower_bound([-d for d in differences], rules.confidence)
    mean = math.fsum(differences) / len(differences)
    numbers |= {
        "champion_mean": champion.return_mean,
        "difference_mean": mean,
        "difference_lower": low,
        "difference_upper": high,
        "margin": rules.margin,
    }
    kind: VerdictKind = "PROMOTE" if low > rules.margin else "REJECT" if high < 0 else "HOLD"
    compared = {
        "PROMOTE": f"at least {low:.6g} with {percent} confidence, which is above the margin of {rules.margin:.6g}",
        "HOLD": f"at least {low:.6g} with {percent} confidence, which is not above the margin of {rules.margin:.6g}: "
        f"ties and doubt keep the champion",
        "REJECT": f"at most {high:.6g} with {percent} confidence: the candidate is worse",
    }
    reasons.append(
        f"on the same {candidate.episodes} episodes the candidate's mean return is {candidate.return_mean:.6g} and the "
        f"champion's {champion.return_mean:.6g}; the difference is {mean:.6g}, {compared[kind]}"
    )
    return Verdict(kind, tuple(reasons), numbers)


def lower_bound(values: Sequence[float], confidence: float) -> float:
    """Returns the one-sided lower confidence bound of the mean: m - t(n - 1, confidence) * s / sqrt(n).

    Equal values have no spread: their bound is the value itself.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if all(value == values[0] for value in values):
        return values[0]
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean - float(stdtrit(n - 1, confidence)) * deviation / math.sqrt(n)
