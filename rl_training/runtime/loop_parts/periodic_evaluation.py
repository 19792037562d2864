"""The evaluations during training: when one is due, its episodes, and whether training has reached its return."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.runs.progress import Progress
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult, Evaluator
from rl_training.runtime.policy import Policy
from rl_training.seeding import episode_seeds
from rl_training.state_checks import Count, validate

logger = logging.getLogger(__name__)

STOPPED_AT_RETURN = "stopped_at_return"
"""The key in a manifest's `extra` that marks the checkpoint at which `evaluation.stop_at_return` ended training."""


def has_reached_return(checkpoint: Checkpoint) -> bool:
    """Returns whether `evaluation.stop_at_return` ended training at a checkpoint."""
    return bool(checkpoint.manifest.extra.get(STOPPED_AT_RETURN))


def describe_stop(stop: StopFlag) -> dict[str, bool]:
    """Returns what `has_reached_return` reads in a manifest's `extra`; empty unless the return has been reached."""
    return {STOPPED_AT_RETURN: True} if stop.cause == "return_reached" else {}


class PeriodicEvaluation:
    """Plays the same episodes at each evaluation, and counts the evaluations in a row that reach `stop_at_return`.

    A resumed run continues the count, unless the run has ended at the return or `stop_at_return` is another one.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._settings, self._total = config.evaluation, config.total_timesteps
        self._evaluator = Evaluator(config)
        self._seeds = episode_seeds(self._settings.seed, "evaluation", self._settings.episodes)
        self._in_a_row = 0

    def is_due(self, progress: Progress) -> bool:
        """Returns whether a multiple of `evaluation.every` was passed since the newest evaluation."""
        every = self._settings.every
        return progress.num_timesteps // every > progress.last_evaluation // every

    def run(self, policy: Policy, stop: StopFlag) -> EvaluationResult:
        """Plays the episodes.

        Raises:
            EnvironmentFault: The environment of the evaluation failed or was refused.
            StopTraining: A stop was requested.
        """
        try:
            return self._evaluator.run(policy, self._seeds, stop)
        except (EnvironmentFault, EnvironmentRefused) as error:
            raise EnvironmentFault(f"in evaluation: {error}") from error

    def judge(self, result: EvaluationResult, progress: Progress, stop: StopFlag) -> bool:
        """Records an evaluation in the progress; requests a stop if it is time to end at `stop_at_return`.

        Returns:
            Whether the policy is the best so far; of equal ones the later, which has learned from more steps.
        """
        progress.last_evaluation = progress.num_timesteps
        is_best = progress.best_return is None or result.return_mean >= progress.best_return
        if is_best:
            progress.best_return = result.return_mean
        if self._ends_training(result, progress.num_timesteps):
            stop.request("return_reached")
        return is_best

    def _ends_training(self, result: EvaluationResult, num_timesteps: int) -> bool:
        """Counts an evaluation; returns whether training ends early because its return was reached often enough."""
        goal = self._settings.stop_at_return
        if goal is None:
            return False
        self._in_a_row = self._in_a_row + 1 if result.return_mean >= goal else 0
        if self._in_a_row < self._settings.stop_after or num_timesteps >= self._total:
            return False
        logger.info(
            "training ends at step %s of %s: the mean return of %d evaluations in a row has reached "
            "evaluation.stop_at_return = %g",
            f"{num_timesteps:,}",
            f"{self._total:,}",
            self._in_a_row,
            goal,
        )
        self._in_a_row = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns how many evaluations in a row have reached which return, as `evaluation`; empty if there is none."""
        if not self._in_a_row:
            return {}
        return {"evaluation": {"reached": self._settings.stop_at_return, "in_a_row": self._in_a_row}}

    def load_state_dict(self, trainer: Mapping[str, Any]) -> None:
        """Restores the count from a training state.

        Raises:
            CheckpointError: It is no such count.
        """
        state = trainer.get("evaluation", {})
        in_a_row = validate("evaluation", state.get("in_a_row", 0), Count)
        self._in_a_row = in_a_row if state.get("reached") == self._settings.stop_at_return else 0

    def close(self) -> None:
        """Closes the environments."""
        self._evaluator.close()
