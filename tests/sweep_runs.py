"""Sweeps of small trainings, an engine without processes, and the final table of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.sweep_result import SweepResult
from rl_training.sweeps.trial import run_segment
from tests.sweep_segments import PPO

GRID: dict[str, Any] = {
    "name": "small",
    "config": PPO,
    "space": {"learning_rate": {"choice": [0.01, 0.001, 0.0001]}},
    "method": "grid",
    "parallel": 2,
    "confirmation": {"points": 1, "seeds": 2},
}
RANDOM: dict[str, Any] = {
    **GRID,
    "space": {"learning_rate": {"log_range": [1e-4, 1e-1]}, "gamma": {"range": [0.9, 0.99]}},
    "method": "random",
    "trials": 5,
}


class InProcessEngine:
    """Trains the segments in this process, one after the other.

    Args:
        fates: What befalls the segments in turn: None trains one, `Lost` loses it, an error is raised in its place.
    """

    def __init__(self, *fates: Lost | Exception | None) -> None:
        self.segments: list[Segment] = []
        """Every segment that was submitted."""
        self._fates = list(fates)

    def run(self, segments: Sequence[Segment], stop: StopFlag) -> Iterator[tuple[Segment, RunRecord | Lost]]:
        """Trains the segments; see `Engine.run`."""
        for segment in segments:
            if stop.requested:
                return
            self.segments.append(segment)
            fate = self._fates.pop(0) if self._fates else None
            if isinstance(fate, Exception):
                raise fate
            result = fate or run_segment(segment)
            if result is not None:
                yield segment, result

    def close(self) -> None:
        """Has nothing to end."""


def list_table(result: SweepResult) -> list[tuple[Any, ...]]:
    """Returns the final table: for each run its trial, point, seed, state, score and policy."""
    trials = [(trial.number, trial.params, trial.score, trial.state, trial.runs) for trial in result.search]
    trials += [(point.trial, point.params, point.scores, "confirmed", point.runs) for point in result.confirmed]
    return [
        (number, _freeze(params), score, state, run.seed, run.policy_sha256, run.held_out)
        for number, params, score, state, runs in trials
        for run in runs
    ]


def _freeze(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(params.items()))
