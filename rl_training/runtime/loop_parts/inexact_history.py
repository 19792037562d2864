"""The history of a run that is not exact, in its checkpoints and its `metadata.json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rl_training.config.settings import TrainConfig
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.runs.progress import Progress
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.inexact_resumes import (
    INEXACT,
    describe_computer,
    list_changes_of_envs,
    list_inexact_resumes,
    record_inexact_resumes,
    record_lost_best,
)
from rl_training.runtime.run_utils import TrainingRun

logger = logging.getLogger(__name__)


class InexactHistory:
    """The resumes of a run that may not have been exact, and what its callbacks did that no resume repeats."""

    def __init__(self, config: TrainConfig, run: TrainingRun) -> None:
        self.entries: list[dict[str, Any]] = []
        """See `rl_training.runtime.inexact_resumes`."""
        self._config, self._run = config, run

    def resume(
        self,
        checkpoint: Checkpoint,
        progress: Progress,
        device: torch.device,
        fresh: Sequence[int],
        changed: Sequence[str],
        envs: object,
    ) -> None:
        """Continues the history of a checkpoint; a resume of a complete run computes nothing, so it is exact.

        Args:
            checkpoint: The checkpoint.
            progress: The progress in it.
            device: The device that learns.
            fresh: The indices of environments that could not be restored and began a new episode.
            changed: Settings that differ and make the run inexact, in words.
            envs: The trainer's `envs`, or None if it has none.
        """
        if progress.num_timesteps < self._config.total_timesteps or progress.phase == "update":
            now = describe_computer(device, self._config.threads, _has_images(envs))
            self.entries = list_inexact_resumes(checkpoint, fresh, now, changed)
        else:
            self.entries = list_inexact_resumes(checkpoint)
            done = f"{progress.num_timesteps:,} of {self._config.total_timesteps:,} steps"
            logger.info("this run is complete at %s; set a larger total_timesteps to train it further", done)

    def record(self, lost_best: Mapping[str, Any] | None) -> None:
        """Adds the entries, and a lost best checkpoint (`TrainResult.lost_best`), to the run's `metadata.json`."""
        record_inexact_resumes(self._run, self.entries)
        record_lost_best(self._run, lost_best)

    def note_changes(self, envs: TrainingEnvs | None, num_timesteps: int) -> None:
        """Adds what callbacks have done to the environments, and a resume can't repeat, to the entries and the record.

        Args:
            envs: The training environments; None for an algorithm that does not offer them.
            num_timesteps: The step of the checkpoint from which resumes are not exact.
        """
        if envs is not None and (new := list_changes_of_envs(self.entries, envs.inexact_changes(), num_timesteps)):
            self.entries = [*self.entries, *new]
            record_inexact_resumes(self._run, self.entries)

    def describe(self, device: torch.device, envs: object) -> dict[str, Any]:
        """Returns the entries and the hardware of this process for a manifest's `extra`; for `envs` see `resume`."""
        return {**describe_computer(device, self._config.threads, _has_images(envs)), INEXACT: self.entries}


def _has_images(envs: object) -> bool:
    return isinstance(envs, TrainingEnvs) and envs.encoder.kind != "vector"
