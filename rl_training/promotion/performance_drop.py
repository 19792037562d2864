"""Whether a policy is still as good as it was when it was promoted: the gate's bounds, of two samples of episodes.

A pure function of two result tables and the rules. The two are of other seeds, and each has a one-sided bound of its
own: what the mean is at most now, and what it was at least then. A drop is where the first is below the second, which
asks for more evidence than a comparison of the two means would: at a confidence of 95 %, a policy that has not changed
is taken for worse in about 1 of 100 evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.config.settings import PromotionConfig
from rl_training.promotion.gate import lower_bound
from rl_training.runtime.evaluation import EvaluationResult


@dataclass(frozen=True)
class DropVerdict:
    """What an evaluation says of a policy that was promoted before."""

    dropped: bool
    """Whether there is evidence that it is no longer as good."""
    reasons: tuple[str, ...]
    """Sentences with the numbers in them."""
    numbers: dict[str, float]
    """The numbers behind the reasons."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DropVerdict:
        """Returns what `dataclasses.asdict` was called on."""
        return cls(data["dropped"], tuple(data["reasons"]), data["numbers"])


def find_drop(now: EvaluationResult, then: EvaluationResult | None, rules: PromotionConfig) -> DropVerdict:
    """Decides whether a policy has dropped.

    It has where the upper bound of its mean return now is below the lower bound of what it was at its promotion, or
    below `rules.floor`. Both bounds have the confidence of the rules.

    Args:
        now: Fresh episodes.
        then: The episodes by which it was promoted; None where there is no record of them.
        rules: Confidence, floor, and the least number of episodes.
    """
    numbers = {"episodes": float(now.episodes), "confidence": rules.confidence, "mean": now.return_mean}
    if now.episodes < rules.episodes:
        reason = f"{now.episodes} episodes were played, and the rules ask for at least {rules.episodes}"
        return DropVerdict(False, (reason,), numbers)

    numbers["upper"] = upper = -lower_bound([-value for value in now.returns], rules.confidence)
    bounds = []
    if then is not None:
        numbers["promoted_mean"] = then.return_mean
        numbers["promoted_lower"] = lower = lower_bound(then.returns, rules.confidence)
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
