"""Makes trainers of new runs, and of runs that resume from a checkpoint, fork it, or are fine-tuned from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rl_training.algorithms.space_checks import include_body_and_mask
from rl_training.config.checking import build_settings
from rl_training.config.named_modules import record_modules
from rl_training.config.reading.recorded_settings import read_recorded_settings
from rl_training.config.resume_rules import (
    Continuation,
    Difference,
    check_differences,
    find_differences,
    keep_vectorization,
    make_difference,
)
from rl_training.config.settings import AUTO, TrainConfig
from rl_training.envs.native.automatic_choice import choose_vectorization
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.validation.validate import CheckSpaces, ValidationReport, require_valid, validate_env
from rl_training.errors import CheckpointError, ConfigError, UserError, one_line
from rl_training.runs.locks import RunLock
from rl_training.runs.single_training import reserve_training
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback, list_callbacks
from rl_training.runtime.checkpoint import Checkpoint, find_checkpoint, load_policy_state
from rl_training.runtime.checkpoint.downloads import import_checkpoint
from rl_training.runtime.checkpoint_saver import require_no_later_checkpoint
from rl_training.runtime.fine_tuning import WeightsOf, carry_over, has_training_state
from rl_training.runtime.loop_parts.named_callbacks import describe_change, require_callbacks
from rl_training.runtime.loop_parts.run_origin import ForkOf, describe_origin, find_own_run, fork_run
from rl_training.runtime.policy import require_policy
from rl_training.runtime.run_utils import (
    TrainingRun,
    create_training_run,
    discard_training_run,
    repair_training_run,
    update_metadata,
)
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.system.open_file_limit import explain_too_many_files

logger = logging.getLogger(__name__)

CALLBACK_OBJECTS = "callback_objects"
"""The field of `metadata.json` that names the callbacks that were given as Python objects, if there were any."""
ConfigT = TypeVar("ConfigT", bound=TrainConfig)
ResumeFrom = str | Path | Checkpoint | WeightsOf | ForkOf | None
"""The checkpoint, or the run, that a trainer continues from."""

_PACKAGE = f"{__name__.partition('.')[0]}."
"""How the names of this package's modules begin."""

_TOO_LARGE = (
    "allocate memory",
    "enough memory",
    "out of memory",
    "Storage size",
    "array is too big",
    "allowed dimension",
)
"""Parts of the messages of torch (on the CPU) and NumPy, which have no error type for a lack of memory."""


@reserve_training()
def train(
    trainer_type: type[Trainer],
    config_type: type[TrainConfig],
    check_spaces: CheckSpaces,
    config: TrainConfig,
    callbacks: Iterable[Callback] = (),
    resume_from: str | Path | Checkpoint | None = None,
) -> TrainResult:
    """Trains without MLflow, held-out evaluation, promotion and signals; `train_...` pass on the last three arguments.

    Args:
        trainer_type: The algorithm's trainer.
        config_type: The class of the algorithm's settings.
        check_spaces: Returns the reasons why the algorithm can't train on given spaces.
        config: The settings.
        callbacks: See `make_trainer`.
        resume_from: See `make_trainer`.

    Raises:
        UserError: The settings, the environment or the checkpoint can't be used, or this process is training already.
        RunFailed: The environment, the numbers or a callback failed during training.
    """
    report = check_trainable(config, config_type, check_spaces) if resume_from is None else None
    trainer = make_trainer(trainer_type, config, callbacks, resume_from=resume_from)
    if report is not None:
        update_metadata(trainer.run, {"validation": report.to_record()})
    return trainer.train()


def check_trainable(config: TrainConfig, expected: type[TrainConfig], check_spaces: CheckSpaces) -> ValidationReport:
    """Checks the settings and the environment that an algorithm's `train_...` function gets, before it writes anything.

    Raises:
        ConfigError: The settings are those of another algorithm.
        EnvironmentRefused: The environment can't be trained on; the message has a line for each reason.
    """
    if not isinstance(config, expected):
        got = f"got {type(config).__name__} (algo: {config.algo})"
        raise ConfigError(f"{got}, expected {expected.__name__}; `train_{config.algo}` takes these settings")
    require_valid(report := validate_env(config, include_body_and_mask(check_spaces, config)))
    return report


def make_trainer(
    trainer_type: type[Trainer],
    config: ConfigT,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: ResumeFrom = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Returns a trainer whose `train()` starts a new run or continues from a checkpoint.

    Args:
        trainer_type: The algorithm's trainer; its arguments are the settings, the run, the callbacks and the flag.
        config: The settings; they are compared with the checkpoint's by `config.resume_rules`.
        callbacks: The callbacks, in the order in which they see each event.
        resume_from: A checkpoint, its directory, or a run's directory for its newest good checkpoint; `WeightsOf` a
            checkpoint, for a new run that is fine-tuned from it; or `ForkOf` a checkpoint, for a new run that continues
            its state with other hyperparameters.
        stop: The flag that asks the run to end.

    Raises:
        CheckpointError: There is no good checkpoint of the right size, or a setting or space differs that must not.
        ConfigError: A callback of the settings can't be made.
        AlreadyTraining: Another process is training the run; nothing in it was changed.
    """
    require_callbacks(config)
    callbacks = list_callbacks(callbacks)
    if resume_from is None:
        config = _choose_for_new_run(config, callbacks)
        run = create_training_run(config)
        record_modules(config)
        if callbacks:
            update_metadata(run, {CALLBACK_OBJECTS: [type(callback).__qualname__ for callback in callbacks]})
        return _make(trainer_type, config, run, callbacks, stop)
    if isinstance(resume_from, WeightsOf):
        return _fine_tune(trainer_type, config, resume_from.checkpoint, callbacks, stop)
    origin = resume_from.checkpoint if isinstance(resume_from, ForkOf) else resume_from
    checkpoint = origin if isinstance(origin, Checkpoint) else find_checkpoint(origin)
    how: Continuation = "explore" if isinstance(resume_from, ForkOf) else "resume"
    before, config, changes = _compare_settings(trainer_type, config, checkpoint, how)
    own_run = None if changes or how == "explore" else find_own_run(checkpoint, config)
    if own_run is None:
        config = _move_elsewhere(config, before)
    lineage = resume_from.lineage if isinstance(resume_from, ForkOf) else None
    run = own_run or fork_run(checkpoint, changes, config, config.run_name != before.run_name, lineage)
    with RunLock(run.run_dir):
        trainer = _make(trainer_type, config, run, callbacks, stop)
        # If this fails, a directory that was made here for a run from elsewhere is removed while it has no checkpoint.
        with _discard_on_error(trainer):
            check_differences(_compare_spaces(trainer, checkpoint))
            if own_run is not None:
                require_no_later_checkpoint(own_run, checkpoint)
                repair_training_run(own_run, config, checkpoint)
                checkpoint = import_checkpoint(checkpoint, own_run.checkpoints)
                logger.info("resuming the run at step %s from %s", f"{checkpoint.num_timesteps:,}", checkpoint.path)
            ranks = [f"{change.key}: {change.before} -> {change.after}" for change in changes if change.key == "ranks"]
            trainer.restore(checkpoint, [*describe_change(before, config), *ranks])
    return trainer


def _fine_tune(
    trainer_type: type[Trainer],
    config: ConfigT,
    checkpoint: Checkpoint,
    callbacks: Iterable[Callback],
    stop: StopFlag | None,
) -> Trainer:
    """Returns the trainer of a new run that begins with the weights of a checkpoint."""
    config = _choose_for_new_run(config, callbacks)
    before, config, changes = _compare_settings(trainer_type, config, checkpoint, "fine_tune")
    config = _move_elsewhere(config, before)
    run = create_training_run(config)
    trainer = _make(trainer_type, config, run, callbacks, stop)
    with _discard_on_error(trainer):
        carried = carry_over(trainer, checkpoint)
        changes += _compare_spaces(trainer, checkpoint, "fine_tune")
        origin = describe_origin(checkpoint, changes, config.run_name != before.run_name)
        update_metadata(run, {"forked_from": {**origin, "fine_tuning": asdict(carried)}})
    logger.warning(
        "a new run, fine-tuned from run %s at step %s\n  it begins with the weights alone (%s)\n  it differs in%s",
        checkpoint.run_uid,
        f"{checkpoint.num_timesteps:,}",
        carried,
        "".join(f"\n    {change}" for change in changes) or " no setting",
    )
    return trainer


def _compare_settings(
    trainer_type: type[Trainer], config: ConfigT, checkpoint: Checkpoint, how: Continuation
) -> tuple[ConfigT, ConfigT, list[Difference]]:
    """Returns the settings of a checkpoint, those of the run that continues from it, and how they differ.

    `vectorization: auto` is the kind of the checkpoint, which a complete state belongs to.

    Raises:
        CheckpointError: A setting differs that must not, or the checkpoint has no complete state of the right size.
    """
    if how != "fine_tune" and not has_training_state(checkpoint):
        raise CheckpointError(
            f"{checkpoint.path} has no training state to resume from, because it belongs to a registered version; "
            f"start a new run with its weights by --fine-tune"
        )
    before = build_settings(read_recorded_settings(checkpoint.config_text(), str(checkpoint.path)), type(config))
    config = keep_vectorization(config, before)
    changes = find_differences(before, config, how)
    check_differences(changes)
    trainer_type.require_size(before, checkpoint)
    return before, config, changes


def _choose_for_new_run(config: ConfigT, callbacks: Iterable[Callback]) -> ConfigT:
    """Returns the settings of a new run without `vectorization: auto`.

    Callbacks of this package leave the environments alone; one of the user may reach single ones as `state.envs`.
    """
    foreign = [callback for callback in callbacks if not type(callback).__module__.startswith(_PACKAGE)]
    chosen = choose_vectorization(config, has_callbacks=bool(foreign))
    if config.vectorization == AUTO and chosen.vectorization == "native":
        logger.info("vectorization: native (auto: quicker than sync for %d of %s)", config.num_envs, config.env_id)
    return chosen


def _move_elsewhere(config: ConfigT, before: ConfigT) -> ConfigT:
    """Returns the settings without their run directory if it belongs to the checkpoint's run, which stays as it is."""
    return config.model_copy(update={"run_dir": None}) if config.run_dir == before.run_dir else config


@contextmanager
def _discard_on_error(trainer: Trainer) -> Iterator[None]:
    try:
        yield
    except BaseException:
        trainer.discard()
        raise


def _compare_spaces(trainer: Trainer, checkpoint: Checkpoint, how: Continuation = "resume") -> list[Difference]:
    """Returns the differences between the spaces of the environment and those that a checkpoint was trained with."""
    state, policy = load_policy_state(checkpoint), require_policy(trainer.policy(), trainer.config.algo)
    spaces = {"observation_space": policy.observation_space, "action_space": policy.action_space}
    changed = [name for name in spaces if name in state and state[name] != space_to_json(spaces[name])]
    return [make_difference(name, space_from_json(state[name]), spaces[name], how) for name in changed]


def _make(
    trainer_type: type[Trainer], config: ConfigT, run: TrainingRun, callbacks: Iterable[Callback], stop: StopFlag | None
) -> Trainer:
    """Returns the trainer of a run; if that fails, a run that has not trained is removed.

    Raises:
        UserError: The networks and buffers do not fit into memory, or the environments need too many open files.
    """
    try:
        return trainer_type(config, run, callbacks, stop=stop)
    except BaseException as error:
        discard_training_run(run)
        if not isinstance(error, MemoryError | RuntimeError | ValueError | OSError):
            raise
        if advice := explain_too_many_files(error):
            raise UserError(f"{advice}, or lower num_envs = {config.num_envs}") from None
        reason = one_line(error).rpartition("DefaultCPUAllocator: ")[2]
        if not isinstance(error, MemoryError) and not any(words in reason for words in _TOO_LARGE):
            raise
        sizes = (f"{name} = {value}" for name, value in _list_sizes(config))
        raise UserError(
            f"the networks and buffers of these settings do not fit into memory: {reason}; lower what makes them "
            f"large: {', '.join(sizes)}"
        ) from None


def _list_sizes(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """Yields the settings of the algorithm that decide how much memory a trainer takes."""
    paths = ["num_envs", "rollout_steps", "buffer_size", "network.hidden"]
    if getattr(getattr(config, "network", None), "recurrent", None):
        paths.append("network.recurrent_size")
    for path in paths:
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is not None:
            yield path, list(value) if isinstance(value, tuple) else value
