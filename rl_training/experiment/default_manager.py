"""The experiment manager: settings or a checkpoint in, a trainer out, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.experiment.loading import config_to_resume
from rl_training.experiment.registry import get_algorithm
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, find_checkpoint
from rl_training.runtime.fine_tuning import WeightsOf
from rl_training.runtime.trainer import Trainer


class DefaultExperimentManager:
    """Makes trainers through the registry."""

    def setup(
        self, config: TrainConfig, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> Trainer:
        """Returns the trainer of a new run; its run directory exists when this returns.

        Args:
            config: The settings.
            callbacks: What sees the run, in the order given.
            stop: A flag that asks the run to end.

        Raises:
            UserError: The settings, the environment or the run directory can't be used.
        """
        return get_algorithm(config.algo).make_trainer(config, callbacks, stop=stop)

    def resume(
        self,
        checkpoint: str | Path | Checkpoint,
        callbacks: Iterable[Callback] = (),
        *,
        stop: StopFlag | None = None,
        fine_tune: bool = False,
        allow_modules: Collection[str] = (),
        **overrides: Any,
    ) -> Trainer:
        """Returns a trainer whose `train()` goes on from a checkpoint.

        With unchanged settings the newest good checkpoint goes on in its own run; anything else (an earlier checkpoint,
        a setting that may change, a larger `total_timesteps`) is a new run, forked from it. A run that is complete
        needs a larger `total_timesteps`; without one, `train()` says that it is complete and succeeds.

        Args:
            checkpoint: A checkpoint, its directory, or a run's directory (its newest good checkpoint is taken).
            callbacks: What sees the run go on, in the order given.
            stop: A flag that asks the run to end.
            fine_tune: Begin a new run with the checkpoint's weights alone; all settings but those of the network may
                change then, the environment among them.
            allow_modules: Modules of environments and wrappers that a received checkpoint may name.
            **overrides: Settings that change, nested as mappings or by dotted keys.

        Raises:
            CheckpointError: No good checkpoint is there, a setting or space differs that must be equal, or no layer of
                the network fits.
            ConfigError: An override is no valid setting.
            ModuleRefused: A received checkpoint names a module that nobody has allowed.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = find_checkpoint(checkpoint)
        config = config_to_resume(checkpoint, overrides, fine_tune=fine_tune, allow_modules=allow_modules)
        resume_from = WeightsOf(checkpoint) if fine_tune else checkpoint
        return get_algorithm(config.algo).make_trainer(config, callbacks, resume_from=resume_from, stop=stop)
