"""Decides whether a policy performs worse than when it was promoted.

The decision is a pure function of two result tables and the rules. The tables have different seeds, so each gets a
one-sided bound of its own: an upper bound of the mean return now, and a lower bound of the mean return then. The policy
has dropped if the upper bound is below the lower bound. This requires more evidence than a comparison of the two means:
at a confidence of 95 %, an unchanged policy is judged worse in about 1 of 100 evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.config.sections import PromotionConfig
from rl_training.promotion.gate import compute_lower_bound
from rl_training.runtime.evaluation import EvaluationResult


@dataclass(frozen=True)
class DropVerdict:
    """The decision on a policy that was promoted before."""

    dropped: bool
    """Whether there is evidence that the policy performs worse."""
    reasons: tuple[str, ...]
    """Sentences with the numbers in them."""
    numbers: dict[str, float]
    """The numbers behind the reasons."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DropVerdict:
        """Returns the verdict that `dataclasses.asdict` has converted."""
        return cls(data["dropped"], tuple(data["reasons"]), data["numbers"])


def find_drop(now: EvaluationResult, then: EvaluationResult | None, rules: PromotionConfig) -> DropVerdict:
    """Decides whether a policy has dropped.

    It has dropped if the upper bound of its mean return now is below the lower bound of its mean return at the
    promotion, or below `rules.floor`. Both bounds have the confidence of the rules.

    Args:
        now: Fresh episodes.
        then: The episodes of its promotion; None if there is no record of them.
        rules: Confidence, floor and minimum number of episodes.
    """
    numbers = {"episodes": float(now.episodes), "confidence": rules.confidence, "mean": now.return_mean}
    if now.episodes < rules.episodes:
        reason = f"{now.episodes} episodes were played, and the rules ask for at least {rules.episodes}"
        return DropVerdict(False, (reason,), numbers)

    numbers["upper"] = upper = -compute_lower_bound([-value for value in now.returns], rules.confidence)
    bounds = []
    if then is not None:
        numbers["promoted_mean"] = then.return_mean
        numbers["promoted_lower"] = lower = compute_lower_bound(then.returns, rules.confidence)
        bounds.append((lower, f"what it was at least when it was promoted (mean {then.return_mean:.6g})"))
    if rules.floor is not None:
        numbers["floor"] = rules.floor
        bounds.append((rules.floor, "the floor"))
    known = (
        f"the mean return is {now.return_mean:.6g}, at most {upper:.6g} with {100 * rules.confidence:g} % confidence"
    )
    if not bounds:
        return DropVerdict(False, (f"{known}; there is neither a record of its promotion nor a floor",), numbers)
    reasons = [
        f"{known}, which is {'below' if upper < bound else 'not below'} {bound:.6g}, {what}" for bound, what in bounds
    ]
    return DropVerdict(any(upper < bound for bound, _ in bounds), tuple(reasons), numbers)
