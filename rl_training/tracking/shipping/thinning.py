"""How many of a run's points MLflow gets: at most about 2,000 of each metric, and every evaluation.

The rule needs no knowledge of the future, so that a run can be thinned while it goes on, and thinning the finished file
gives the same points.
"""

from __future__ import annotations

from collections.abc import Mapping

BUCKETS = 2_000
"""Buckets of equal width that a run's steps fall into; of each metric the first point in each bucket is kept."""

EVALUATION_EVENTS = frozenset({"eval", "heldout"})
"""Events whose metrics are all kept."""


class Downsampler:
    """Decides, line by line in the file's order, which metrics of a line are kept.

    Args:
        total_timesteps: The run's length in steps; a bucket is `total_timesteps / 2000` steps wide.
    """

    def __init__(self, total_timesteps: int) -> None:
        self._total = total_timesteps
        self._seen: dict[str, set[int]] = {}

    def keep(self, event: str, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of this line that are kept, and remembers them."""
        if event in EVALUATION_EVENTS:
            return dict(metrics)
        bucket = step * BUCKETS // self._total
        kept = {}
        for key, value in metrics.items():
            seen = self._seen.setdefault(key, set())
            if bucket not in seen:
                seen.add(bucket)
                kept[key] = value
        return kept
