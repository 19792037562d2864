"""Trains and resumes complete runs: the functions behind `rl-training train` and `rl-training resume`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.api.summary import RunSummary
from rl_training.api.training import check_environment, train_and_evaluate
from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping, config_to_resume, load_config
from rl_training.runs.locks import job_lock
from rl_training.runs.single_training import reserve_training
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.ranks.follower import leave_if_follower
from rl_training.system.download_directories import discard_downloads
from rl_training.system.paths import home
from rl_training.tracking.checkpoint_sources import Wanted, download_checkpoint


@reserve_training()
def train(
    config: TrainConfig | Mapping[str, Any] | str | Path,
    callbacks: Iterable[Callback] = (),
    *,
    track: bool = True,
    offline: bool = False,
    progress: bool | None = None,
) -> RunSummary:
    """Checks the environment, trains, evaluates the final policy, and records all of it, as `rl-training train` does.

    SIGINT (Ctrl-C, or a notebook's stop button), SIGTERM and SIGHUP stop the run at its next step: it is saved, and its
    summary is returned with the stop reason `signal`. A second SIGINT raises KeyboardInterrupt at once. Both end the
    processes of the environments. Outside the main thread, signals are left to the program.

    Args:
        config: The settings, a mapping of them, or what `load_config` takes: a file, or a shipped name like
            `ppo/cartpole`.
        callbacks: Callbacks of the training, called in this order; the run's metric log comes last.
        track: Whether to log the run to MLflow.
        offline: Whether to keep the data for MLflow in the run's directory, for `rl-training sync`.
        progress: Whether to show the progress; by default on a terminal and in a notebook.

    Returns:
        The summary of the run, unless it ended with an error.

    Raises:
        UserError: The settings, the environment or the tracking server can't be used, or this process is already
            training; nothing was trained.
        RunFailed: Training failed; the newest good checkpoint is kept.
        KeyboardInterrupt: A second SIGINT came; the newest good checkpoint is kept.
    """
    home()  # raises if it can't be written, before the environment is checked
    config = _read_config(config)
    leave_if_follower(config)
    validation = check_environment(config).to_record()
    with job_lock(config.job):
        trainer = DefaultExperimentManager().setup(config, callbacks, validation=validation)
        return train_and_evaluate(trainer, track=track, offline=offline, progress=progress)


def resume(
    source: str | PathLike[str] | Checkpoint,
    callbacks: Iterable[Callback] = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
    track: bool = True,
    offline: bool = False,
    progress: bool | None = None,
    **overrides: Any,
) -> RunSummary:
    """Continues training from a checkpoint as if training had never stopped, as `rl-training resume` does.

    The run is recorded from here on even if it was not before, for example because `train_ppo` began it, unless `track`
    is False. A run that is in MLflow stays there. For signals see `train`.

    Args:
        source: A checkpoint, the directory of a checkpoint or a run, an MLflow run id, `runs:/ID`, or
            `models:/NAME@ALIAS`. Of a run, the newest good checkpoint is taken.
        callbacks: See `train`.
        fine_tune: Whether to begin a new run with the checkpoint's weights alone, for example in another environment.
        allow_modules: Modules that a received checkpoint may import.
        track: See `train`.
        offline: See `train`.
        progress: See `train`.
        **overrides: Changed settings, such as `total_timesteps`, nested as mappings or by dotted keys. Some must stay
            equal.

    Returns:
        The summary of the complete run.

    Raises:
        CheckpointError: There is no good checkpoint, a setting or space differs that must not, or no layer of the
            network fits.
        ConfigError: An override is not a valid setting.
        TrackingError: MLflow can't be reached, or the source does not exist.
        AlreadyTraining: Another process is training the run.
        UserError: This process is already training.
        ModuleRefused: A received checkpoint names a module that is not allowed.
        RunFailed: Training failed; the newest good checkpoint is kept.
        KeyboardInterrupt: A second SIGINT came; the newest good checkpoint is kept.
    """
    return resume_training(
        source,
        overrides,
        callbacks,
        fine_tune=fine_tune,
        allow_modules=allow_modules,
        track=track,
        offline=offline,
        progress=progress,
    )


@reserve_training()
@discard_downloads()
def resume_training(
    source: str | PathLike[str] | Checkpoint,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    callbacks: Iterable[Callback] = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
    track: bool = True,
    offline: bool = False,
    progress: bool | None = None,
) -> RunSummary:
    """Resumes training with overrides in either form, such as texts `total_timesteps=1e6`; see `resume`."""
    home()
    leave_if_follower(None)
    wanted: Wanted = "weights" if fine_tune else "everything"
    checkpoint = download_checkpoint(source, wanted=wanted, to_resume=not overrides and not fine_tune)
    config = config_to_resume(checkpoint, overrides, fine_tune=fine_tune, allow_modules=allow_modules)
    validation = check_environment(config).to_record()
    with job_lock(config.job):
        trainer = DefaultExperimentManager().setup(
            config, callbacks, checkpoint=checkpoint, fine_tune=fine_tune, validation=validation
        )
        return train_and_evaluate(trainer, track=track, offline=offline, progress=progress)


def _read_config(config: TrainConfig | Mapping[str, Any] | str | Path) -> TrainConfig:
    match config:
        case TrainConfig():
            return config
        case Mapping():
            return config_from_mapping(config)
        case str() | Path():
            return load_config(config)
    raise ConfigError(
        f"config: got a {type(config).__name__}, expected settings, a mapping of them, a file or a shipped name"
    )
