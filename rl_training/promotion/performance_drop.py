"""Decides whether a policy performs worse than when it was promoted.

The decision is a pure function of two result tables and the rules. The tables have different seeds, so each gets a
one-sided bound of its own: an upper bound of the mean return now, and a lower bound of the mean return then. The policy
has dropped if the upper bound is below the lower bound or below the floor.

The episodes of the promotion decided about it, so a policy was often luckier then than it is on average. Each bound
therefore has so much confidence that it errs as rarely alone as two bounds at `promotion.confidence` do together: 99 %
for 95 %. An unchanged policy is then judged worse in about 1 of 100 evaluations, even if its mean return is exactly at
the floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

from rl_training.config.sections import PromotionConfig
from rl_training.promotion.confidence_bounds import compute_lower_bound
from rl_training.runs.evaluation_result import EvaluationResult


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
    promotion, or below `rules.floor`. A failure that either table shows is possible in both.

    Args:
        now: Fresh episodes.
        then: The episodes of its promotion; None if there is no record of them.
        rules: Confidence, floor and minimum number of episodes.
    """
    numbers = {"episodes": float(now.episodes), "confidence": rules.confidence, "mean": now.return_mean}
    if now.episodes < rules.episodes:
        reason = f"{now.episodes} episodes were played, and the rules ask for at least {rules.episodes}"
        return DropVerdict(False, (reason,), numbers)

    numbers["bound_confidence"] = confidence = float(ndtr(math.sqrt(2) * ndtri(rules.confidence)))
    worst, best = min(now.returns), max(now.returns if then is None else (*now.returns, *then.returns))
    numbers["upper"] = upper = -compute_lower_bound([-value for value in now.returns], confidence, worst=-best)
    bounds = []
    if then is not None:
        numbers["promoted_mean"] = then.return_mean
        numbers["promoted_lower"] = lower = compute_lower_bound(then.returns, confidence, worst=worst)
        bounds.append((lower, f"what it was at least when it was promoted (mean {then.return_mean:.6g})"))
    if rules.floor is not None:
        numbers["floor"] = rules.floor
        bounds.append((rules.floor, "the floor"))
    known = f"the mean return is {now.return_mean:.6g}, at most {upper:.6g} with {100 * confidence:.4g} % confidence"
    if not bounds:
        return DropVerdict(False, (f"{known}; there is neither a record of its promotion nor a floor",), numbers)
    reasons = [
        f"{known}, which is {'below' if upper < bound else 'not below'} {bound:.6g}, {what}" for bound, what in bounds
    ]
    return DropVerdict(any(upper < bound for bound, _ in bounds), tuple(reasons), numbers)
