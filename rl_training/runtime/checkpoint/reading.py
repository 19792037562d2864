"""Reads checkpoints: each is verified by hash before use, and nothing in a checkpoint is ever run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, CheckpointNotWritten, one_line
from rl_training.run_layout import CHECKPOINTS, CONFIG, STAGING, STEP
from rl_training.runtime.checkpoint.manifest import (
    MANIFEST,
    POLICY,
    TRAINER,
    FileState,
    Manifest,
    check_open_file,
    is_shard,
    read_file_state,
    read_manifest,
    read_settings_text,
    verify_files,
)
from rl_training.runtime.checkpoint.plain_pickle import NotPlain
from rl_training.runtime.checkpoint.plain_state import find_non_finite, from_plain, policy_sha256, require_few_values
from rl_training.runtime.checkpoint.staging import DAMAGED, SUPERSEDED
from rl_training.runtime.checkpoint.tensor_file import read_tensor_file
from rl_training.security.planted_links import refuse_links
from rl_training.security.untrusted_json import open_plain_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was complete when it was written or opened."""

    path: Path
    """The directory of the checkpoint."""
    manifest: Manifest
    hashed: Mapping[str, FileState] = field(default_factory=dict, compare=False, repr=False)
    """The states in which its replay shards, which may take many gigabytes, were hashed when it was opened."""
    source: str | None = field(default=None, compare=False)
    """The address that it was downloaded from, `runs:/ID/checkpoints/step_...` or `models:/NAME/VERSION`."""

    @property
    def address(self) -> str:
        """The name of the checkpoint as a source: the address that it was downloaded from, or else its directory."""
        return self.source or str(self.path)

    @property
    def num_timesteps(self) -> int:
        """The step: environment transitions so far."""
        return self.manifest.num_timesteps

    @property
    def algorithm(self) -> str:
        """The name of the registered algorithm."""
        return self.manifest.algorithm

    @property
    def run_uid(self) -> str:
        """The run that wrote it."""
        return self.manifest.run_uid

    @property
    def policy_sha256(self) -> str:
        """The identity of the policy."""
        return self.manifest.policy_sha256

    def config_text(self) -> str:
        """Returns the text of `config.yaml`.

        Raises:
            CheckpointError: The file is damaged, too large, or not text.
        """
        with _open_verified(self, CONFIG) as file:
            return read_settings_text(self.path / CONFIG, file)


def open_checkpoint(path: str | Path, *, policy_only: bool = False, known: Collection[str] = ()) -> Checkpoint:
    """Verifies a checkpoint: its manifest, and the size and hash of each file.

    Args:
        path: The directory of the checkpoint.
        policy_only: Whether `config.yaml` and `policy.pt` suffice, as in a registered model; such a checkpoint can't be
            resumed.
        known: The names of files that the caller has just hashed; they are not read.

    Raises:
        CheckpointError: The checkpoint is damaged, partial, foreign or of a newer format. The message names the file
            and, if there is one, the newest good checkpoint beside it.
    """
    path = Path(path).absolute()
    refuse_links(path)
    try:
        return verify_checkpoint(path, policy_only=policy_only, known=known)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{describe_newest_good(path.parent)}") from error


def load_policy_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the `policy` that `write_checkpoint` was given.

    Raises:
        CheckpointError: The file is damaged, holds more than tensors, numbers and strings (which is never run), is not
            the policy that the manifest names, or has a NaN or infinity.
    """
    state, path = load_tensors(checkpoint, POLICY), checkpoint.path / POLICY
    policy = _from_plain(state, path)
    require_few_values(state, path)
    if (where := find_non_finite(state)) is not None:
        raise CheckpointError(f"{path} is refused: its tensor {where} is NaN or infinite")
    if policy_sha256(state) != checkpoint.policy_sha256:
        raise CheckpointError(f"{path} is refused: its policy is not the one that the manifest names")
    return policy


def load_trainer_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the `trainer` state that `write_checkpoint` was given.

    Raises:
        CheckpointError: The file is damaged, or holds more than tensors, numbers and strings (which is never run).
    """
    return _from_plain(load_tensors(checkpoint, TRAINER), checkpoint.path / TRAINER)


def list_checkpoints(root: Path) -> tuple[list[Checkpoint], list[str]]:
    """Reads the manifests of a run's checkpoints; other files are not verified.

    Args:
        root: The `checkpoints` directory of a run.

    Returns:
        The checkpoints, newest step first (by the manifest, not by name or file time), and one line for each skipped
        directory. Checkpoints that were set aside as damaged are left out.
    """
    found, skipped = [], []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.startswith(STAGING) and path.is_dir():
            skipped.append(f"{path}: a save that did not finish")
        elif path.is_dir() and not path.name.startswith((DAMAGED, ".")):
            try:
                found.append(Checkpoint(path, read_manifest(path)))
            except CheckpointError as error:
                skipped.append(str(error))
    found.sort(key=lambda c: (c.num_timesteps, not c.path.name.startswith(SUPERSEDED)), reverse=True)
    return found, skipped


def newest_good(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest complete checkpoint.

    Args:
        root: The `checkpoints` directory of a run.

    Returns:
        The checkpoint with the largest step whose files all match their hashes, or None; and one line for each skipped
        checkpoint.
    """
    found, skipped = list_checkpoints(root)
    for checkpoint in found:
        try:
            return verify_checkpoint(checkpoint.path), skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, skipped


def has_later(checkpoint: Checkpoint, root: Path) -> bool:
    """Returns whether `root` has a good checkpoint of a later step; earlier checkpoints are not verified."""
    found, _ = list_checkpoints(root)
    for later in found:
        if later.num_timesteps > checkpoint.num_timesteps:
            with suppress(CheckpointError):
                verify_checkpoint(later.path)
                return True
    return False


def find_checkpoint(source: str | Path, *, policy_only: bool = False) -> Checkpoint:
    """Returns the verified checkpoint that a path stands for.

    Args:
        source: The directory of a checkpoint; or a run directory, or the `checkpoints` in it, which stands for its
            newest good checkpoint. Skipped checkpoints are logged.
        policy_only: As in `open_checkpoint`; applies to the directory of a checkpoint only.

    Raises:
        CheckpointError: There is no good checkpoint.
    """
    path = Path(source).absolute()  # because an environment may change the working folder
    refuse_links(path)
    if not path.is_dir() or (path / MANIFEST).exists() or path.name.startswith(STEP):
        return open_checkpoint(path, policy_only=policy_only)
    root = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    checkpoint, skipped = newest_good(root)
    if checkpoint is None:
        raise CheckpointError(_explain_no_checkpoint(path, root, skipped))
    for line in skipped:
        logger.warning("skipped: %s", line)
    return checkpoint


def _explain_no_checkpoint(path: Path, root: Path, skipped: list[str]) -> str:
    is_run = any((folder / CONFIG).is_file() for folder in (path, path.parent))
    if any(written.is_dir() and not written.name.startswith(STAGING) for written in root.glob(f"*{STEP}*")):
        advice = "if the run is in MLflow, resume it by its MLflow run id; else train again with another run_dir"
        return "; ".join([f"{path} has no good checkpoint", *skipped, advice])
    if is_run:
        advice = "train again with another run_dir, or remove this one first"
        return f"{path} holds a run that ended before its first checkpoint; {advice}"
    return f"{path} holds no run and no checkpoint"


def verify_checkpoint(path: Path, *, policy_only: bool = False, known: Collection[str] = ()) -> Checkpoint:
    """Verifies a checkpoint as `open_checkpoint` does, but its errors don't name the newest good checkpoint."""
    manifest = read_manifest(path)
    names = {CONFIG, POLICY} if policy_only else manifest.files.keys() - known
    states = verify_files(path, {name: entry for name, entry in manifest.files.items() if name in names})
    return Checkpoint(path, manifest, {name: state for name, state in states.items() if is_shard(name)})


def load_tensors(checkpoint: Checkpoint, name: str) -> Any:
    """Returns the content of a tensor file of a checkpoint, in plain form (see `plain_state`).

    Raises:
        CheckpointError: The file is damaged, or holds more than tensors, numbers and strings (which is never run).
    """
    with _open_verified(checkpoint, name) as file:
        try:
            return read_tensor_file(file)
        except NotPlain as error:
            raise CheckpointError(
                f"{checkpoint.path / name} is refused: it holds more than tensors, numbers and strings, or is no file "
                f"of torch.save ({one_line(error)}); nothing in it was run"
            ) from error


def _from_plain(state: Any, path: Path) -> dict[str, Any]:
    try:
        loaded = from_plain(state, path.stem)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is refused: {one_line(error)}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} is refused: got a {type(loaded).__name__}, expected a mapping")
    return loaded


@contextmanager
def _open_verified(checkpoint: Checkpoint, name: str) -> Iterator[Any]:
    """Opens and checks a file, then yields the same handle for reading; skips the check of an unchanged shard."""
    path = checkpoint.path / name
    try:
        with open_plain_file(path) as file:
            if checkpoint.hashed.get(name) != read_file_state(file):
                check_open_file(path, file, checkpoint.manifest.files[name])
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {one_line(error)}") from error


def describe_newest_good(root: Path) -> str:
    """Returns a clause for error messages that names the newest good checkpoint; empty if `root` has no checkpoints."""
    try:
        if not any(root.glob(f"{STEP}*")):
            return ""
        newest, _ = newest_good(root)
    except OSError:
        return ""
    return f"; the newest good checkpoint is {newest.path}" if newest else "; there is no good checkpoint beside it"


@contextmanager
def report_write_errors(root: Path, target: Path) -> Iterator[None]:
    """Turns an OSError into a `CheckpointNotWritten` that names `target` and the newest good checkpoint in `root`."""
    try:
        yield
    except OSError as error:
        raise CheckpointNotWritten(
            f"{target} can't be written: {one_line(error.strerror or error)}{describe_newest_good(root)}"
        ) from error
