"""The callback of a trial: keeps the evaluations for the sweep, and stops a run that the sweep has given up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import FiniteFloat

from rl_training.errors import ConfigError
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.state_checks import Count, validate
from rl_training.sweeps.engines.engine import Segment

Evaluations = list[Annotated[tuple[Count, FiniteFloat], "step and metric"]]


class TrialCallback(Callback):
    """Keeps the metric of each periodic evaluation, also in the checkpoints, so that it goes wherever the run goes.

    Args:
        segment: The segment that is trained.
    """

    def __init__(self, segment: Segment) -> None:
        self.evaluations: dict[int, float] = {}
        """The metric by step."""
        self._segment = segment

    def on_eval_end(self, state: TrainerState) -> None:
        """Notes the metric; asks the run to end if it is worse than what the sweep expects at this step.

        Raises:
            ConfigError: There is no such metric.
        """
        metric = self._segment.metric
        if metric not in state.metrics:
            raise ConfigError(f"metric: got {metric}, expected one of {', '.join(sorted(state.metrics))}")
        self.evaluations[state.num_timesteps] = float(state.metrics[metric])
        if self.is_pruned():
            state.stop.request("pruned")

    def is_pruned(self) -> bool:
        """Returns whether an evaluation so far is worse than the segment's limit for its step."""
        limits = self._segment
        return any(
            value < limits.prune_below.get(step, value) or value > limits.prune_above.get(step, value)
            for step, value in self.evaluations.items()
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the evaluations so far."""
        return {"evaluations": [[step, value] for step, value in self.evaluations.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the evaluations of a checkpoint.

        Raises:
            CheckpointError: They are no evaluations.
        """
        self.evaluations = dict(validate("evaluations", [tuple(pair) for pair in state["evaluations"]], Evaluations))
