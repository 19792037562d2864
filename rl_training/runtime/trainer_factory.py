"""Makes a trainer: of a new run, or of one that goes on from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rl_training.config.checking import build_settings
from rl_training.config.named_modules import record_modules
from rl_training.config.parsing import read_yaml
from rl_training.config.resume_rules import Difference, check_differences, find_differences, make_difference
from rl_training.config.settings import TrainConfig
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.errors import CheckpointError, UserError, one_line
from rl_training.run_layout import CHECKPOINTS, CONFIG, METADATA
from rl_training.runs.locks import RunLock
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import (
    Checkpoint,
    find_checkpoint,
    has_later,
    list_checkpoints,
    load_policy_state,
)
from rl_training.runtime.checkpoint.downloads import import_checkpoint, read_download
from rl_training.runtime.fine_tuning import WeightsOf, carry_over, has_training_state
from rl_training.runtime.run_utils import (
    TrainingRun,
    create_training_run,
    discard_training_run,
    open_training_run,
    repair_training_run,
    update_metadata,
)
from rl_training.runtime.trainer import Trainer
from rl_training.system.open_file_limit import explain_too_many_files

logger = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=TrainConfig)
ResumeFrom = str | Path | Checkpoint | WeightsOf | None
"""What a trainer goes on from."""

_TOO_LARGE = (
    "allocate memory",
    "enough memory",
    "out of memory",
    "Storage size",
    "array is too big",
    "allowed dimension",
)
"""Words of torch and NumPy, which have no type of error for it (CUDA's apart)."""


def make_trainer(
    trainer_type: type[Trainer],
    config: ConfigT,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: ResumeFrom = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Returns a trainer whose `train()` starts a new run, or goes on from a checkpoint.

    Args:
        trainer_type: The algorithm's kind of trainer: called with the config, the run, the callbacks and the stop flag.
        config: The settings; on resume they are compared with the checkpoint's by `config.resume_rules`.
        callbacks: In the order in which they shall see events.
        resume_from: A checkpoint, its directory, or a run's directory (its newest good checkpoint is taken); or
            `WeightsOf` a checkpoint, for a new run that is fine-tuned from it.
        stop: The flag that asks the run to end.

    Raises:
        CheckpointError: There is no good checkpoint there, it is not of the size that its settings say, or a setting or
            space differs that must be equal.
        AlreadyTraining: Another process trains the run, in which nothing was changed.
    """
    if resume_from is None:
        run = create_training_run(config)
        record_modules(config)
        return _made(trainer_type, config, run, callbacks, stop)
    if isinstance(resume_from, WeightsOf):
        return _fine_tuned(trainer_type, config, resume_from.checkpoint, callbacks, stop)
    checkpoint = resume_from if isinstance(resume_from, Checkpoint) else find_checkpoint(resume_from)
    if not has_training_state(checkpoint):
        raise CheckpointError(
            f"{checkpoint.path} has no training state to go on from (it is a registered version's own copy); begin a "
            f"new run with its weights by --fine-tune"
        )
    before = _settings(checkpoint, config)
    changes = find_differences(before, config)
    check_differences(changes)
    trainer_type.require_held(before, checkpoint)
    own_run = None if changes else _own_run(checkpoint, config)
    if own_run is None:
        config = _elsewhere(config, before)
    run = own_run or _fork(checkpoint, changes, config)
    with RunLock(run.run_dir):
        trainer = _made(trainer_type, config, run, callbacks, stop)
        # A directory made for it, the run's own being elsewhere, goes again unless the checkpoint has come into it.
        with _discarded_on_error(trainer):
            check_differences(_space_differences(trainer, checkpoint))
            if own_run is not None:
                trainer.require_newest(checkpoint)
                repair_training_run(own_run, config, checkpoint)
                checkpoint = import_checkpoint(checkpoint, own_run.checkpoints)
                logger.info("the run goes on at step %s, from %s", f"{checkpoint.num_timesteps:,}", checkpoint.path)
            trainer.restore(checkpoint)
    return trainer


def _fine_tuned(
    trainer_type: type[Trainer],
    config: ConfigT,
    checkpoint: Checkpoint,
    callbacks: Iterable[Callback],
    stop: StopFlag | None,
) -> Trainer:
    """The trainer of a new run that begins with the weights of a checkpoint."""
    before = _settings(checkpoint, config)
    changes = find_differences(before, config, fine_tuning=True)
    check_differences(changes)
    trainer_type.require_held(before, checkpoint)
    config = _elsewhere(config, before)
    run = create_training_run(config)
    trainer = _made(trainer_type, config, run, callbacks, stop)
    with _discarded_on_error(trainer):
        carried = carry_over(trainer, checkpoint)
        changes += _space_differences(trainer, checkpoint, fine_tuning=True)
        origin = {**_origin(checkpoint, changes), "fine_tuning": asdict(carried)}
        update_metadata(run, {"forked_from": origin})
    logger.warning(
        "a new run, fine-tuned from run %s at step %s\n  it begins with the weights alone (%s)\n  it differs in %s",
        checkpoint.run_uid,
        f"{checkpoint.num_timesteps:,}",
        carried,
        "".join(f"\n    {change}" for change in changes) or "no setting",
    )
    return trainer


def _settings(checkpoint: Checkpoint, config: ConfigT) -> ConfigT:
    """The settings that a checkpoint was written with."""
    return build_settings(read_yaml(checkpoint.config_text(), str(checkpoint.path)), type(config))


def _elsewhere(config: ConfigT, before: ConfigT) -> ConfigT:
    """The settings with a run directory of their own, where they name the one that the checkpoint's run lives in."""
    return config.model_copy(update={"run_dir": None}) if config.run_dir == before.run_dir else config


@contextmanager
def _discarded_on_error(trainer: Trainer) -> Iterator[None]:
    try:
        yield
    except BaseException:
        trainer.discard()
        raise


def _space_differences(trainer: Trainer, checkpoint: Checkpoint, *, fine_tuning: bool = False) -> list[Difference]:
    """The spaces in which the environment differs from the one that a checkpoint was trained in."""
    state, policy = load_policy_state(checkpoint), trainer.policy()
    spaces = {"observation_space": policy.observation_space, "action_space": policy.action_space}
    return [
        make_difference(name, space_from_json(state[name]), space, fine_tuning=fine_tuning)
        for name, space in spaces.items()
        if name in state and state[name] != space_to_json(space)
    ]


def _made(
    trainer_type: type[Trainer], config: ConfigT, run: TrainingRun, callbacks: Iterable[Callback], stop: StopFlag | None
) -> Trainer:
    """The trainer of a run that was just made; the run goes again where no trainer can be made."""
    try:
        return _constructed(trainer_type, config, run, callbacks, stop)
    except BaseException:
        discard_training_run(run)
        raise


def _constructed(
    trainer_type: type[Trainer], config: ConfigT, run: TrainingRun, callbacks: Iterable[Callback], stop: StopFlag | None
) -> Trainer:
    """The trainer; what is too large for the memory is the settings' fault."""
    try:
        return trainer_type(config, run, callbacks, stop=stop)
    except (MemoryError, RuntimeError, ValueError, OSError) as error:
        if advice := explain_too_many_files(error):
            raise UserError(f"{advice}, or lower num_envs = {config.num_envs}") from None
        reason = one_line(error).rpartition("DefaultCPUAllocator: ")[2]
        if not isinstance(error, MemoryError) and not any(words in reason for words in _TOO_LARGE):
            raise
        sizes = (f"{name} = {value}" for name, value in _sizes(config))
        raise UserError(
            f"the networks and buffers of these settings do not fit into memory: {reason}; lower what makes them "
            f"large: {', '.join(sizes)}"
        ) from None


def _sizes(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """The settings that say how much memory a trainer takes, of those that its algorithm has."""
    for path in ("num_envs", "rollout_steps", "buffer_size", "network.hidden"):
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is not None:
            yield path, list(value) if isinstance(value, tuple) else value


def _own_run(checkpoint: Checkpoint, config: TrainConfig) -> TrainingRun | None:
    """The run that the checkpoint is the newest of; None where a later one exists: going on would rewrite history."""
    if has_later(checkpoint, checkpoint.path.parent):
        return None
    run_dir = checkpoint.path.parent.parent
    download = read_download(checkpoint)
    if download is not None:
        if not download.newest:
            return None
        run_dir = download.run_dir
    run = _run_in(run_dir)
    if run is not None and run.run_uid == checkpoint.run_uid:
        return None if has_later(checkpoint, run.checkpoints) else run
    if download is None:
        return None
    return create_training_run(config.model_copy(update={"run_dir": None}), run_uid=checkpoint.run_uid)


def _run_in(run_dir: Path) -> TrainingRun | None:
    """The run that a directory holds, or None; if a power cut has emptied its description, as its checkpoints say."""
    if not any((run_dir / name).is_file() for name in (METADATA, CONFIG)):
        return None
    try:
        return open_training_run(run_dir)
    except UserError:
        found, _ = list_checkpoints(run_dir / CHECKPOINTS)
        return TrainingRun(run_dir.absolute(), found[0].run_uid) if found else None


def _fork(checkpoint: Checkpoint, changes: list[Difference], config: TrainConfig) -> TrainingRun:
    logger.warning(
        "a new run, forked from run %s at step %s: %s",
        checkpoint.run_uid,
        f"{checkpoint.num_timesteps:,}",
        "; ".join(map(str, changes)) or "that run has a later checkpoint, or its directory is not here",
    )
    return create_training_run(config, forked_from=_origin(checkpoint, changes))


def _origin(checkpoint: Checkpoint, changes: list[Difference]) -> dict[str, Any]:
    return {
        "run_uid": checkpoint.run_uid,
        "num_timesteps": checkpoint.num_timesteps,
        "policy_sha256": checkpoint.policy_sha256,
        "differences": [str(change) for change in changes],
    }
