"""Writes checkpoints: staged, hashed, synced, then renamed; old checkpoints are removed only afterwards."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rl_training.config.serialization import WrittenConfig
from rl_training.errors import CheckpointError, NumericError
from rl_training.run_layout import CONFIG, REPLAY, checkpoint_name
from rl_training.runs.locks import require_not_taken_over
from rl_training.runs.versions import versions
from rl_training.runtime.checkpoint import staging
from rl_training.runtime.checkpoint.manifest import MANIFEST, POLICY, TRAINER, Manifest
from rl_training.runtime.checkpoint.plain_state import find_non_finite, policy_sha256, to_plain
from rl_training.runtime.checkpoint.reading import (
    Checkpoint,
    list_checkpoints,
    report_write_errors,
    verify_checkpoint,
)
from rl_training.runtime.checkpoint.replay_shards import ShardEntry, describe_shards, find_shared_shards
from rl_training.system.durable_files import link_or_copy, write_file
from rl_training.system.file_entry import FileEntry

logger = logging.getLogger(__name__)


def write_checkpoint(
    root: Path,
    *,
    config: WrittenConfig,
    run_uid: str,
    algorithm: str,
    num_timesteps: int,
    policy: Mapping[str, Any],
    trainer: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    shards: Sequence[ShardEntry] | None = None,
) -> Checkpoint:
    """Writes a checkpoint that is complete on disk when this returns; a partial one never has its name.

    A good checkpoint of the same step with the same content is kept and returned. One with other content was taken in
    the middle of the update of the step, or before its evaluation, and is removed once the new one is in place. A
    damaged one is set aside.

    Args:
        root: The `checkpoints` directory of the run; made if it is missing.
        config: The settings of the run, for `config.yaml`; pass the same object for each checkpoint of a run.
        run_uid: The identity of the run.
        algorithm: The name of the registered algorithm.
        num_timesteps: Environment transitions so far.
        policy: All that evaluation and serving need: tensors, numpy arrays, numbers, strings, lists and mappings.
        trainer: All else that resuming needs, in the same types.
        extra: JSON for the manifest.
        shards: The result of `WriteShards` if the algorithm has a replay buffer. The checkpoint shares these files;
            they are neither written nor read again.

    Raises:
        NumericError: The policy has a NaN or infinity; nothing is written.
        RunTakenOver: Another process has taken the run over.
        CheckpointNotWritten: The checkpoint can't be written; existing checkpoints stay, and nothing partial is left.
    """
    policy, trainer = to_plain(policy, "policy"), to_plain(trainer, "trainer")
    require_finite(policy, num_timesteps)
    target = root / checkpoint_name(num_timesteps)
    with report_write_errors(root, target):
        staging.prepare(root)
        existing = _open_existing(target, shards or ())
        with staging.stage(target) as staged:
            entries = _write_files(staged, config.text, policy, trainer, shards or ())
            if existing is not None and existing.manifest.files == entries:
                return existing
            manifest = Manifest(
                algorithm=algorithm,
                num_timesteps=num_timesteps,
                run_uid=run_uid,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=versions(),
                config_hash=config.hash,
                policy_sha256=policy_sha256(policy),
                files=entries,
                extra={**(extra or {}), **({} if shards is None else {REPLAY: describe_shards(shards)})},
            )
            write_file(staged / MANIFEST, lambda file: file.write(manifest.to_json().encode()))
            require_not_taken_over(root.parent)  # as late as possible, so that taking a run over is safe
            staging.publish(staged, target)
    return Checkpoint(target, manifest)


def require_finite(policy: Mapping[str, Any], num_timesteps: int) -> None:
    """Checks that the numbers of a policy are finite.

    Raises:
        NumericError: A tensor, which the message names, has a NaN or infinity.
    """
    if (where := find_non_finite(policy)) is not None:
        raise NumericError(f"policy tensor {where} is NaN or infinite at step {num_timesteps}; it is not saved")


def prune(root: Path, keep_last: int, keep: Collection[Path] = ()) -> list[Path]:
    """Removes all but the newest checkpoints.

    Args:
        root: The `checkpoints` directory of a run.
        keep_last: The number of newest checkpoints to keep.
        keep: Other checkpoints to keep.

    Returns:
        The directories that were removed.

    Raises:
        CheckpointNotWritten: The directory can't be written.
    """
    found, _ = list_checkpoints(root)
    doomed = [checkpoint.path for checkpoint in found[keep_last:] if checkpoint.path not in keep]
    with report_write_errors(root, root):
        for path in doomed:
            staging.remove(path)
    return doomed


def _write_files(
    staged: Path,
    config: bytes,
    policy: Mapping[str, Any],
    trainer: Mapping[str, Any],
    shards: Sequence[ShardEntry],
) -> dict[str, FileEntry]:
    entries = {
        CONFIG: write_file(staged / CONFIG, lambda file: file.write(config)),
        POLICY: write_file(staged / POLICY, lambda file: torch.save(policy, file)),
        TRAINER: write_file(staged / TRAINER, lambda file: torch.save(trainer, file)),
    }
    for shard in shards:
        link_or_copy(shard.path, staged / shard.path.name)
        entries[shard.path.name] = shard.file
    return entries


def _open_existing(target: Path, shards: Sequence[ShardEntry]) -> Checkpoint | None:
    if not target.exists():
        return None
    try:
        return verify_checkpoint(target, known=find_shared_shards(target, shards))
    except CheckpointError as error:
        logger.warning("%s; set aside as %s", error, staging.set_aside(target))
        return None
