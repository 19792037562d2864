"""The experiment manager: the only way from settings or a checkpoint to a trainer, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.experiment.loading import config_to_resume
from rl_training.experiment.registry import get_algorithm
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, find_checkpoint
from rl_training.runtime.fine_tuning import WeightsOf
from rl_training.runtime.loop_parts.run_origin import ForkOf
from rl_training.runtime.run_utils import update_metadata
from rl_training.runtime.trainer import Trainer


class DefaultExperimentManager:
    """Makes trainers, which leave out MLflow, held-out evaluation, promotion and signals; `rl_training.train` has them.

    A trainer comes from the registry of algorithms, whichever the settings or the checkpoint name.
    """

    def setup(
        self,
        config: TrainConfig,
        callbacks: Iterable[Callback] = (),
        *,
        checkpoint: Checkpoint | ForkOf | None = None,
        fine_tune: bool = False,
        stop: StopFlag | None = None,
        validation: Mapping[str, Any] | None = None,
    ) -> Trainer:
        """Returns a trainer of a new run, or one that continues from a checkpoint with the given settings.

        The run directory exists when this method returns.

        Args:
            config: The settings.
            callbacks: The callbacks, in the order in which they see each event.
            checkpoint: The checkpoint to continue from, or `ForkOf` one, to continue it in a new run with other
                hyperparameters; None for new weights.
            fine_tune: Whether to begin a new run with the checkpoint's weights alone.
            stop: A flag that asks the run to end.
            validation: The record of the environment's validation, which the run's `metadata.json` keeps; see
                `ValidationReport.to_record`.

        Raises:
            UserError: The settings, the environment, the checkpoint or the run directory can't be used.
        """
        resume_from = WeightsOf(checkpoint) if fine_tune and isinstance(checkpoint, Checkpoint) else checkpoint
        trainer = get_algorithm(config.algo).make_trainer(config, callbacks, resume_from=resume_from, stop=stop)
        if validation is not None:
            update_metadata(trainer.run, {"validation": dict(validation)})
        return trainer

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
        """Returns a trainer whose `train()` continues from a checkpoint, with the checkpoint's settings.

        With unchanged settings, the newest good checkpoint continues in its own run. An earlier checkpoint or a changed
        setting, such as a larger `total_timesteps`, makes a new run that is forked from the old one. `train()` of a
        complete run logs that it is complete and succeeds; train it further with a larger `total_timesteps`.

        Args:
            checkpoint: A checkpoint, its directory, or a run's directory, of which the newest good checkpoint is taken.
            callbacks: The callbacks, in the order in which they see each event.
            stop: A flag that asks the run to end.
            fine_tune: Whether to begin a new run with the checkpoint's weights alone. All settings but those of the
                network may change then, including the environment.
            allow_modules: Modules that a received checkpoint may import.
            **overrides: Changed settings, nested as mappings or by dotted keys.

        Raises:
            CheckpointError: There is no good checkpoint, a setting or space differs that must be equal, or no layer of
                the network fits.
            ConfigError: An override is not a valid setting.
            ModuleRefused: A received checkpoint names a module that is not allowed.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = find_checkpoint(checkpoint)
        config = config_to_resume(checkpoint, overrides, fine_tune=fine_tune, allow_modules=allow_modules)
        return self.setup(config, callbacks, checkpoint=checkpoint, fine_tune=fine_tune, stop=stop)
