"""The result of an evaluation: its episodes and their summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rl_training.envs.episodes.episode_numbers import IS_SUCCESS, RAW_RETURN

EQUAL_FROM = 20
"""Least number of episodes whose equal returns are remarkable; of a few episodes, equal returns are common."""

CONFIDENCE = 0.95
"""The confidence level of the interval of the mean."""

MEANS = {IS_SUCCESS: "success_rate", RAW_RETURN: "raw_return_mean"}
"""The tracked names of the means of an episode's numbers; others, such as `info/KEY`, keep their own."""


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of one evaluation, in the order of their seeds."""

    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    """The return of each episode in the environment's own rewards, undiscounted and not normalised."""
    lengths: tuple[int, ...]
    """The number of steps of each episode."""
    cut: int = 0
    """The number of episodes that were cut off by the evaluation's own limit on their length."""
    numbers: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Other numbers of the episodes by name, as in `Episode.numbers`; None for an episode that did not give one."""
    starts: int | None = None
    """The number of different first observations; None for an evaluation of an earlier version."""

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """The mean return."""
        return math.fsum(self.returns) / self.episodes

    @property
    def return_std(self) -> float:
        """The sample standard deviation of the returns (n - 1); 0 for one episode."""
        if self.episodes == 1:
            return 0.0
        mean = self.return_mean
        largest = max(abs(r - mean) for r in self.returns)
        scale = 1.0 if 1e-100 < largest < 1e100 or largest == 0.0 else largest  # whose square is an ordinary number
        return scale * math.sqrt(math.fsum(((r - mean) / scale) ** 2 for r in self.returns) / (self.episodes - 1))

    @property
    def ci_low(self) -> float:
        """The lower end of the 95 % Student t interval of the mean; NaN for one episode, which has no interval."""
        return self.return_mean - self._half_width()

    @property
    def ci_high(self) -> float:
        """The upper end of the 95 % Student t interval of the mean; NaN for one episode, which has no interval."""
        return self.return_mean + self._half_width()

    @property
    def length_mean(self) -> float:
        """The mean number of steps."""
        return math.fsum(self.lengths) / self.episodes

    @property
    def success_rate(self) -> float | None:
        """The share of successful episodes among those that say whether they were; None if none does."""
        return self._mean(IS_SUCCESS)

    @property
    def raw_return_mean(self) -> float | None:
        """The mean return beneath all wrappers; None for an environment without wrappers."""
        return self._mean(RAW_RETURN)

    @property
    def warning(self) -> str | None:
        """A doubt about what the returns show, in words: all of them are equal although the episodes' starts differ.

        If the environment says that every episode was a success, equal returns are no surprise.
        """
        if self.episodes < EQUAL_FROM or (self.starts or 1) < 2 or len(set(self.returns)) > 1:
            return None
        if self.success_rate == 1.0:
            return None
        return (
            f"all {self.episodes:,} returns are {self.returns[0]:,.2f}, although the episodes began differently; "
            f"either a limit hides which policy is better, or the return does not depend on the actions"
        )

    def summary(self) -> dict[str, float]:
        """Returns the summary statistics; undefined ones are left out."""
        numbers = {
            "return_mean": self.return_mean,
            "return_std": self.return_std,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "length_mean": self.length_mean,
            "episodes": float(self.episodes),
        }
        if self.cut:
            numbers["cut_episodes"] = float(self.cut)
        for name in self.numbers:
            mean = self._mean(name)
            if mean is not None:
                numbers[MEANS.get(name, name)] = mean
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def metrics(self, prefix: str) -> dict[str, float]:
        """Returns the summary under tracked names, such as `eval/return_mean` for the prefix `eval`."""
        return {f"{prefix}/{name}": value for name, value in self.summary().items()}

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary and every episode for JSON; undefined values of `ci_low` and `ci_high` are None."""
        return {
            "ci_low": None,
            "ci_high": None,
            **self.summary(),
            "episodes": self.episodes,
            "cut": self.cut,
            "seeds": list(self.seeds),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "numbers": {name: list(values) for name, values in self.numbers.items()},
            "starts": self.starts,
            "warning": self.warning,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Returns the result from which `to_dict` made the data."""
        numbers = {name: tuple(values) for name, values in data.get("numbers", {}).items()}
        seeds, returns, lengths = (tuple(data[name]) for name in ("seeds", "returns", "lengths"))
        return cls(seeds, returns, lengths, data["cut"], numbers, data.get("starts"))

    def _mean(self, name: str) -> float | None:
        given = [value for value in self.numbers.get(name, ()) if value is not None]
        return math.fsum(given) / len(given) if given else None

    def _half_width(self) -> float:
        if self.episodes == 1:
            return math.nan
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # here, because it takes 0.2 s

        quantile = float(stdtrit(self.episodes - 1, 0.5 + CONFIDENCE / 2))
        return quantile * self.return_std / math.sqrt(self.episodes)


def describe_other_numbers(summary: Mapping[str, float]) -> list[str]:
    """Returns the numbers of an evaluation besides the return, in words; nothing for those that it does not have.

    Args:
        summary: Numbers by the names that `EvaluationResult.summary` gives them.
    """
    parts = []
    if summary.get("success_rate") is not None:
        parts.append(f"success rate {100 * summary['success_rate']:.1f} %")
    if summary.get("raw_return_mean") is not None:
        parts.append(f"mean raw return {summary['raw_return_mean']:,.2f}")
    parts += [f"mean {name} {summary[name]:,.4g}" for name in sorted(summary) if name.startswith("info/")]
    return parts


def select_evaluation_numbers(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the summary of an evaluation in JSON form, without its episodes."""
    return {name: value for name, value in evaluation.items() if not isinstance(value, list) and name != "numbers"}
