"""Makes run directories, describes runs in them, and saves checkpoints in them."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch

from rl_training.config.serialization import WrittenConfig, config_hash, dump_config
from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError, UserError
from rl_training.run_layout import CHECKPOINTS, CONFIG, METADATA
from rl_training.runs.computer import describe_machine
from rl_training.runs.locks import remove_lock
from rl_training.runs.metadata import read_metadata
from rl_training.runs.run_identity import make_run_uid
from rl_training.runs.versions import find_commit, versions
from rl_training.runtime.checkpoint import (
    Checkpoint,
    ShardEntry,
    best_path,
    list_kept,
    prune,
    write_checkpoint,
)
from rl_training.security.planted_links import refuse_links
from rl_training.security.secrets import REDACTED, is_secret_name, redact, redact_text
from rl_training.system.durable_files import make_directory, replace_file, sync_directory, write_file
from rl_training.system.paths import runs_root
from rl_training.system.programs import program

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingRun:
    """A run and where it is kept."""

    run_dir: Path
    """Absolute."""
    run_uid: str
    """The unique identity of the run."""

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.run_dir / CHECKPOINTS


WIDE = 1_000_000
"""A network with a layer of this many weights (1,000 x 1,000) counts as wide."""


def resolve_device(name: str, *, images: bool = False, hidden: Sequence[int] = ()) -> tuple[torch.device, str]:
    """Chooses the device by a fixed rule.

    Args:
        name: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is a GPU, if there is one, for images and wide layers, else the
            CPU, because small networks wait longer for the kernel launches of a GPU than they compute.
        images: Whether the observations contain images.
        hidden: The widths of the hidden layers.

    Returns:
        The device, and the reason for the choice in words.

    Raises:
        ConfigError: The settings name a GPU that is missing.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name != "auto":
        device = torch.device(name)
        if device.type == "cuda" and (device.index or 0) >= available:
            raise ConfigError(f"device: got {name}, and torch sees {available} GPUs; use auto or cpu")
        return device, "as set"
    wide = any(above * below >= WIDE for below, above in pairwise(hidden))
    if not images and not wide:
        return torch.device("cpu"), "auto: the network is so small that a GPU would be slower"
    if not available:
        return torch.device("cpu"), "auto: torch sees no GPU"
    what = "convolutions are" if images else "a network as wide as this is"
    return torch.device("cuda:0"), f"auto: {what} quicker on a GPU"


def serialize_train_config(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings as JSON values: paths as text, tags as a mapping of strings, secrets hidden."""
    return redact(config.model_dump(mode="json"))


def create_training_run(
    config: TrainConfig, *, run_uid: str | None = None, forked_from: Mapping[str, Any] | None = None
) -> TrainingRun:
    """Makes a new run: its directory, its identity, `config.yaml` and `metadata.json`.

    Args:
        config: The settings. Without `run_dir`, the run gets a new directory with a readable name under the home of
            rl_training.
        run_uid: The identity of a run from elsewhere that continues here; by default that of `use_run_uid`, or new.
        forked_from: The origin of the run, as JSON, for `metadata.json`.

    Raises:
        UserError: The directory already holds a run, or can't be written.
    """
    started, run_uid = datetime.now().astimezone(), run_uid or make_run_uid()
    run_dir = (config.run_dir or _free_directory(config, started, run_uid)).expanduser().absolute()
    metadata = {**_make_metadata(config, started, run_uid), "forked_from": forked_from}
    try:
        make_directory(run_dir)
        if any((run_dir / name).exists() for name in (CONFIG, METADATA, CHECKPOINTS)):
            raise FileExistsError
        _write_new(run_dir / CONFIG, dump_config(config))  # fails for the second of two processes
        _write_new(run_dir / METADATA, _to_text(metadata))
        sync_directory(run_dir)
    except FileExistsError:
        if not run_dir.is_dir():
            raise UserError(f"run_dir {run_dir} is a file; expected a directory, or a free path") from None
        raise UserError(
            f"{run_dir} already holds a run; resume it with "
            f"`{program('rl-training')} resume {shlex.quote(str(run_dir))}`, or choose another run_dir"
        ) from None
    except OSError as error:
        with suppress(OSError):
            discard_training_run(TrainingRun(run_dir, run_uid))
        raise UserError(f"run_dir {run_dir} can't be written: {error.strerror or error}") from error
    return TrainingRun(run_dir, run_uid)


def open_training_run(run_dir: str | Path) -> TrainingRun:
    """Returns the run in a directory.

    Raises:
        UserError: The directory holds no run.
    """
    run_dir = Path(run_dir).absolute()
    refuse_links(run_dir)
    return TrainingRun(run_dir, read_metadata(run_dir)["run_uid"])


def repair_training_run(run: TrainingRun, config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Writes `config.yaml` and `metadata.json` again if a power cut has emptied them.

    Earlier versions could leave them empty beside complete checkpoints, from which they can be written again.

    Args:
        run: The run, to which no other process may write now.
        config: The settings of the run.
        checkpoint: The newest checkpoint of the run.

    Raises:
        UserError: The directory can't be written.
    """
    try:
        open_training_run(run.run_dir)
    except UserError as error:
        logger.warning("%s; it is written again from %s", error, checkpoint.path)
        started = datetime.fromisoformat(checkpoint.manifest.created)
        metadata = {**_make_metadata(config, started, run.run_uid), "forked_from": None}
        metadata |= {"versions": dict(checkpoint.manifest.versions), "recovered_from": checkpoint.path.name}
        _replace(run.run_dir / METADATA, _to_text(metadata))
    text = (run.run_dir / CONFIG).read_bytes() if (run.run_dir / CONFIG).is_file() else b""
    if not text.strip(b"\0\n"):
        logger.warning("%s is empty; it is written again from %s", run.run_dir / CONFIG, checkpoint.path)
        _replace(run.run_dir / CONFIG, checkpoint.config_text())


def update_metadata(run: TrainingRun, fields: Mapping[str, Any]) -> None:
    """Updates fields of a run's `metadata.json`.

    Raises:
        UserError: The directory can't be written.
    """
    text = _to_text({**read_metadata(run.run_dir), **fields})
    _replace(run.run_dir / METADATA, text)


def discard_training_run(run: TrainingRun) -> None:
    """Removes the files of a run that never trained; other files, and a run with checkpoints, stay."""
    if run.checkpoints.exists():
        return
    for name in (CONFIG, METADATA):
        (run.run_dir / name).unlink(missing_ok=True)
    remove_lock(run.run_dir)
    with suppress(OSError):  # the directory has other files
        run.run_dir.rmdir()


def save_training_checkpoint(
    run: TrainingRun,
    written: WrittenConfig,
    *,
    num_timesteps: int,
    policy: Mapping[str, Any],
    trainer: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    shards: Sequence[ShardEntry] | None = None,
) -> Checkpoint:
    """Writes a checkpoint of a run, then removes the checkpoints that `checkpoint.keep_last` does not keep.

    The best checkpoint by periodic evaluation is always kept, and so are those of `keep_pause`. See `write_checkpoint`
    for the arguments.

    Raises:
        NumericError: The policy has a NaN or infinity.
        CheckpointNotWritten: The checkpoint can't be written; existing checkpoints stay.
    """
    checkpoint = write_checkpoint(
        run.checkpoints,
        config=written,
        run_uid=run.run_uid,
        algorithm=written.config.algo,
        num_timesteps=num_timesteps,
        policy=policy,
        trainer=trainer,
        extra=extra,
        shards=shards,
    )
    best = best_path(run.checkpoints)
    keep = {checkpoint.path, *([best[0]] if best else []), *list_kept(run.checkpoints)}
    prune(run.checkpoints, written.config.checkpoint.keep_last, keep)
    return checkpoint


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Returns a command line that hides each value if its key or option names a secret."""
    return [
        REDACTED
        if before.startswith("--") and is_secret_name(before) and not argument.startswith("--")
        else _redact_argument(argument)
        for before, argument in zip(["", *arguments], arguments, strict=False)
    ]


def _redact_argument(argument: str) -> str:
    parts = argument.split("=")  # `key=value`, `--set=key=value`
    for i, key in enumerate(parts[:-1], start=1):
        if is_secret_name(key):
            return "=".join([*parts[:i], REDACTED])
    return redact_text(argument)  # `env_kwargs={token: value}`


def _free_directory(config: TrainConfig, started: datetime, run_uid: str) -> Path:
    """Returns a directory that does not exist yet; a run that is resumed elsewhere twice in a second gets two."""
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.env_id.rpartition(":")[2])
    name = f"{env}-{config.algo}-s{config.seed}-{started:%Y%m%d-%H%M%S}-{run_uid[:8]}"
    return next(path for i in count(1) if not (path := runs_root() / (name if i == 1 else f"{name}-{i}")).exists())


def _write_new(path: Path, text: str) -> None:
    write_file(path, lambda file: file.write(text.encode()))


def _replace(path: Path, text: str) -> None:
    try:
        replace_file(path, text)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error


def _to_text(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, indent=2, allow_nan=False) + "\n"


def _make_metadata(config: TrainConfig, started: datetime, run_uid: str) -> dict[str, Any]:
    return {
        "run_uid": run_uid,
        "started": started.isoformat(timespec="seconds"),
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "device": config.device,
        "threads": config.threads,
        "config_hash": config_hash(config),
        "command": redact_command(sys.argv),
        "versions": versions(),
        "platform": platform.platform(),
        "machine": describe_machine(),
        "git": find_commit(),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
    }
