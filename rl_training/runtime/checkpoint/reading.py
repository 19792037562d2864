"""Reading checkpoints: each is verified by hash before use, and nothing in one is ever run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, CheckpointNotWritten, one_line
from rl_training.run_layout import BEST, CHECKPOINTS, CONFIG, STAGING, STEP, checkpoint_name
from rl_training.runtime.checkpoint.manifest import (
    MANIFEST,
    POLICY,
    TRAINER,
    Best,
    FileState,
    Manifest,
    check_open_file,
    file_state,
    is_shard,
    read_manifest,
    read_settings_text,
    verify_files,
)
from rl_training.runtime.checkpoint.plain_pickle import NotPlain
from rl_training.runtime.checkpoint.plain_state import first_non_finite, from_plain, policy_sha256, require_few_values
from rl_training.runtime.checkpoint.staging import DAMAGED, SUPERSEDED
from rl_training.runtime.checkpoint.tensor_file import read_tensor_file
from rl_training.security.planted_links import refuse_links
from rl_training.security.untrusted_json import NotReadable, open_plain_file, read_json
from rl_training.system.durable_files import is_same_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was whole when it was written or opened."""

    path: Path
    """Its directory."""
    manifest: Manifest
    hashed: Mapping[str, FileState] = field(default_factory=dict, compare=False, repr=False)
    """The states in which its replay shards, which may have many gigabytes, were hashed when it was opened."""

    @property
    def num_timesteps(self) -> int:
        """Environment transitions until it was taken."""
        return self.manifest.num_timesteps

    @property
    def algorithm(self) -> str:
        """Name of the registered algorithm that it belongs to."""
        return self.manifest.algorithm

    @property
    def run_uid(self) -> str:
        """The run that wrote it."""
        return self.manifest.run_uid

    @property
    def policy_sha256(self) -> str:
        """Identity of its policy."""
        return self.manifest.policy_sha256

    def config_text(self) -> str:
        """Returns its `config.yaml`.

        Raises:
            CheckpointError: The file is damaged, too large, or no text.
        """
        with _verified_file(self, CONFIG) as file:
            return read_settings_text(self.path / CONFIG, file)


def open_checkpoint(path: str | Path, *, policy_only: bool = False, known: Collection[str] = ()) -> Checkpoint:
    """Verifies a checkpoint: its manifest, and the size and hash of each file.

    Args:
        path: Its directory.
        policy_only: Only `config.yaml` and `policy.pt` need be there, as in a registered model; training can't go on
            from it.
        known: Names of files that are not read: the caller has hashed them just now.

    Raises:
        CheckpointError: It is damaged, partial, foreign or of a newer format. One line, which names the file and, where
            there is one beside it, the newest good checkpoint.
    """
    path = Path(path).absolute()
    refuse_links(path)
    try:
        return verify_checkpoint(path, policy_only=policy_only, known=known)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{newest_good_hint(path.parent)}") from error


def load_policy_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns what `write_checkpoint` was given as `policy`.

    Raises:
        CheckpointError: The file is damaged, holds more than tensors, numbers and strings (nothing of it is run), is
            not the policy that the manifest names, or has a NaN or infinity.
    """
    state, path = load_tensors(checkpoint, POLICY), checkpoint.path / POLICY
    policy = _from_plain(state, path)
    require_few_values(state, path)
    if (where := first_non_finite(state)) is not None:
        raise CheckpointError(f"{path} is refused: its tensor {where} is NaN or infinite")
    if policy_sha256(state) != checkpoint.policy_sha256:
        raise CheckpointError(f"{path} is refused: its policy is not the one that the manifest names")
    return policy


def load_trainer_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns what `write_checkpoint` was given as `trainer`.

    Raises:
        CheckpointError: The file is damaged, or holds more than tensors, numbers and strings (nothing of it is run).
    """
    return _from_plain(load_tensors(checkpoint, TRAINER), checkpoint.path / TRAINER)


def list_checkpoints(root: Path) -> tuple[list[Checkpoint], list[str]]:
    """Reads the manifests of a run's checkpoints; their other files are not verified.

    Returns:
        The checkpoints, newest step first (by the manifest, not by name or file time), and one line for each directory
        that was skipped. What is set aside as damaged is left out.
    """
    found, skipped = [], []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.startswith(STAGING) and path.is_dir():
            skipped.append(f"{path}: a save that did not end")
        elif path.is_dir() and not path.name.startswith((DAMAGED, ".")):
            try:
                found.append(Checkpoint(path, read_manifest(path)))
            except CheckpointError as error:
                skipped.append(str(error))
    found.sort(key=lambda c: (c.num_timesteps, not c.path.name.startswith(SUPERSEDED)), reverse=True)
    return found, skipped


def newest_good(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest checkpoint that is whole.

    Args:
        root: A run's `checkpoints` directory.

    Returns:
        The checkpoint with the largest step in its manifest whose files all verify, or None; and one line for each that
        was skipped on the way.
    """
    found, skipped = list_checkpoints(root)
    for checkpoint in found:
        try:
            return verify_checkpoint(checkpoint.path), skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, skipped


def has_later(checkpoint: Checkpoint, root: Path) -> bool:
    """Returns whether a good checkpoint of a larger step is in `root`; what is not later is not read."""
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
        source: A checkpoint's directory; or a run's directory (or the `checkpoints` in it), which stands for its newest
            good checkpoint. What is skipped on the way is logged.
        policy_only: As in `open_checkpoint`, of a checkpoint's directory; a run's good checkpoints are whole.

    Raises:
        CheckpointError: There is no good checkpoint.
    """
    path = Path(source).absolute()  # an environment may change the working folder
    refuse_links(path)
    if not path.is_dir() or (path / MANIFEST).exists() or path.name.startswith(STEP):
        return open_checkpoint(path, policy_only=policy_only)
    root = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    checkpoint, skipped = newest_good(root)
    if checkpoint is None:
        raise CheckpointError(_nothing_good(path, root, skipped))
    for line in skipped:
        logger.warning("skipped: %s", line)
    return checkpoint


def _nothing_good(path: Path, root: Path, skipped: list[str]) -> str:
    is_run = any((folder / CONFIG).is_file() for folder in (path, path.parent))
    if any(not written.name.startswith(STAGING) for written in root.glob(f"*{STEP}*")):
        advice = "where the run is in MLflow, resume it by its MLflow run id; else train again with another run_dir"
        return "; ".join([f"{path} has no good checkpoint", *skipped, advice])
    if is_run:
        advice = "train again with another run_dir, or remove this one first"
        return f"{path} holds a run that ended before its first checkpoint; {advice}"
    return f"{path} holds no run and no checkpoint"


def best_path(root: Path) -> tuple[Path, float] | None:
    """Returns where the best checkpoint is, unverified, and its mean return; None where none is recorded.

    Raises:
        CheckpointError: The record is damaged.
    """
    path = root / BEST
    if not path.exists():
        return None
    try:
        best = read_json(path, Best)
        name = best["checkpoint"]
        if name != checkpoint_name(best["num_timesteps"]):
            raise NotReadable(f"checkpoint {one_line(name)!r} is no name of a checkpoint")
    except (OSError, NotReadable) as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}; remove it to go on without") from error
    return root / name, best["return_mean"]


def read_best(root: Path, opened: Checkpoint | None = None) -> tuple[Checkpoint, float] | None:
    """Returns the checkpoint with the best periodic evaluation, verified, and its mean return; None if there is none.

    Args:
        root: A run's `checkpoints` directory.
        opened: A checkpoint that was opened just now; the shards that both have are not hashed again.

    Raises:
        CheckpointError: The record or the checkpoint is damaged.
    """
    best = best_path(root)
    if best is None:
        return None
    path, return_mean = best
    known = {name for name in opened.hashed if is_same_file(path / name, opened.path / name)} if opened else set()
    return open_checkpoint(path, known=known), return_mean


def verify_checkpoint(path: Path, *, policy_only: bool = False, known: Collection[str] = ()) -> Checkpoint:
    """Does the work of `open_checkpoint`, whose errors also say where the newest good checkpoint is."""
    manifest = read_manifest(path)
    names = {CONFIG, POLICY} if policy_only else manifest.files.keys() - known
    states = verify_files(path, {name: entry for name, entry in manifest.files.items() if name in names})
    return Checkpoint(path, manifest, {name: state for name, state in states.items() if is_shard(name)})


def load_tensors(checkpoint: Checkpoint, name: str) -> Any:
    """Returns what one of its files holds, in plain form (see `plain_state`).

    Raises:
        CheckpointError: The file is damaged, or holds more than tensors, numbers and strings (nothing of it is run).
    """
    with _verified_file(checkpoint, name) as file:
        try:
            return read_tensor_file(file)
        except NotPlain as error:
            raise CheckpointError(
                f"{checkpoint.path / name} is refused: it holds more than tensors, numbers and strings, or is no such "
                f"file at all ({one_line(error)}); nothing in it was run"
            ) from error


def _from_plain(state: Any, path: Path) -> dict[str, Any]:
    try:
        loaded = from_plain(state, path.stem)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is refused: {one_line(error)}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} is refused: it holds a {type(loaded).__name__}, and a mapping is expected")
    return loaded


@contextmanager
def _verified_file(checkpoint: Checkpoint, name: str) -> Iterator[Any]:
    """Opens a file and checks it through the handle that it is then read by, an unchanged shard only once."""
    path = checkpoint.path / name
    try:
        with open_plain_file(path) as file:
            if checkpoint.hashed.get(name) != file_state(file):
                check_open_file(path, file, checkpoint.manifest.files[name])
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {one_line(error)}") from error


def newest_good_hint(root: Path) -> str:
    """Returns the end of an error's line: where the newest good checkpoint is; empty where `root` is no run's."""
    try:
        if not any(root.glob(f"{STEP}*")):
            return ""
        newest, _ = newest_good(root)
    except OSError:
        return ""
    return f"; the newest good checkpoint is {newest.path}" if newest else "; there is no good checkpoint beside it"


@contextmanager
def report_write_errors(root: Path, target: Path) -> Iterator[None]:
    """Turns what the system says of a write to `target` into one line, with the newest good checkpoint in `root`."""
    try:
        yield
    except OSError as error:
        raise CheckpointNotWritten(
            f"{target} can't be written: {one_line(error.strerror or error)}{newest_good_hint(root)}"
        ) from error
