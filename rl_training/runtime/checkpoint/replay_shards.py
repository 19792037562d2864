"""A replay buffer on disk: immutable files that its checkpoints share, of which each save writes only what is new.

A shard holds consecutive transitions, by their numbers in the run; the buffer's ring is a window over the shards. It is
named by the hash of its bytes. A run keeps those of the current window under `replay/`; a checkpoint has them as hard
links, so it is whole by itself and they go with the last checkpoint that needs them.

The training thread only says what a shard holds: it seals it. Another thread takes a sealed shard's transitions out of
the ring, one shard at a time, so that there is no second buffer in memory, and writes them. A step of training that
would overwrite what is sealed and not taken yet waits for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import CheckpointError
from rl_training.run_layout import CHECKPOINTS, REPLAY
from rl_training.runtime.checkpoint.reading import Checkpoint, load_tensors, report_write_errors
from rl_training.runtime.checkpoint.staging import sweep
from rl_training.system.durable_files import (
    FileEntry,
    is_same_file,
    link_or_copy,
    make_directory,
    staging_path,
    sync_directory,
    write_file,
)

PIECE_BYTES = 16 * 2**20
"""A shard is of this size at most, or of 1/256 of the buffer where that is more."""


@dataclass(frozen=True)
class ShardEntry:
    """A shard that is whole on disk."""

    path: Path
    """Named by its sha256."""
    first: int
    """Number of its first transition in the run."""
    count: int
    """Transitions."""
    file: FileEntry

    @property
    def end(self) -> int:
        """Number of the transition after its last."""
        return self.first + self.count


WriteShards = Callable[[], list[ShardEntry]]
"""Writes sealed shards, in any one thread, in the order in which they were sealed; returns all of the ring's, in order.

Raises `CheckpointNotWritten` where the disk is full, read-only, or the like; no stub is left, what is written stays.
"""


@dataclass(eq=False)
class _Shard:
    """Transitions that belong together: in the ring, on the way to the disk, or there."""

    first: int
    end: int
    copy: Callable[[], dict[str, NDArray[Any]]] | None = None
    """Takes what is to be written out of the ring; None once that has happened, or was given up."""
    entry: ShardEntry | None = None
    """Of the file, once it is whole."""
    error: BaseException | None = None
    """Why it was given up."""
    taken: threading.Event = field(default_factory=threading.Event)
    """Set from when on the ring's rows may be overwritten."""

    def take(self) -> dict[str, NDArray[Any]]:
        """Returns a copy of what is to be written."""
        if self.copy is None:
            raise self.error or AssertionError("a shard is written once")
        rows, self.copy = self.copy(), None
        self.taken.set()
        return rows

    def give_up(self, error: BaseException) -> None:
        """Lets go of the ring; whoever else was to write it fails by the same error."""
        self.copy, self.error = None, error
        self.taken.set()


class ReplayStore:
    """The shards of a run's replay buffer.

    Its methods belong to the training thread.

    Args:
        directory: The run's directory / `REPLAY`; made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._shards: list[_Shard] = []

    def seal(self, buffer: ReplayBuffer) -> WriteShards:
        """Seals all that no shard has yet.

        Returns:
            Writes them; returns the shards that hold all that the buffer holds now, for `write_checkpoint`.
        """
        self._drop_overwritten(buffer)
        failed = next((i for i, shard in enumerate(self._shards) if shard.error is not None), len(self._shards))
        del self._shards[failed:]  # the buffer still has it
        if not all(_on_disk(shard.entry) for shard in self._shards if shard.entry is not None):
            self._shards.clear()  # somebody removed them; likewise
        return self._seal(buffer, buffer.total)

    def seal_pieces(self, buffer: ReplayBuffer) -> WriteShards | None:
        """Seals what fills whole shards, so that the next save, in a hurry perhaps, has little left to write.

        Returns:
            As `seal`; None where no shard is full, or the last could not be written: that is left to the next save.
        """
        start, piece = self._start(buffer), _piece(buffer)
        if buffer.total - start < piece or (self._shards and self._shards[-1].error is not None):
            return None
        self._drop_overwritten(buffer)
        return self._seal(buffer, start + (buffer.total - start) // piece * piece)

    def make_room(self, buffer: ReplayBuffer) -> None:
        """Waits until the buffer's next step overwrites nothing that is sealed and not taken out of the ring yet."""
        overwritten = buffer.total + buffer.num_envs - buffer.capacity  # transitions before this one
        while self._shards and self._shards[0].first < overwritten:
            self._shards[0].taken.wait()
            if self._shards[0].end > overwritten:
                return
            del self._shards[0]

    def load(self, checkpoint: Checkpoint, buffer: ReplayBuffer) -> None:
        """Fills the buffer from a checkpoint, of this run or another, and goes on with its shards.

        Raises:
            CheckpointError: As `load_replay`.
            CheckpointNotWritten: The directory can't be written.
        """
        entries = load_replay(checkpoint, buffer)
        with report_write_errors(self.directory.parent / CHECKPOINTS, self.directory):
            make_directory(self.directory)
            self._shards = [_written(self._adopt(entry)) for entry in entries]
            self._remove_others({entry.path.name for entry in entries})
            sync_directory(self.directory)

    def cut_newest(self, buffer: ReplayBuffer, env_indices: Sequence[int]) -> None:
        """Does the buffer's `cut_newest`, after a load; the next save writes the shard that this changes anew."""
        buffer.cut_newest(env_indices)
        del self._shards[-1:]

    def _start(self, buffer: ReplayBuffer) -> int:
        return max(self._shards[-1].end if self._shards else 0, buffer.oldest)

    def _drop_overwritten(self, buffer: ReplayBuffer) -> None:
        self._shards = [shard for shard in self._shards if shard.end > buffer.oldest]

    def _seal(self, buffer: ReplayBuffer, end: int) -> WriteShards:
        while (start := self._start(buffer)) < end:
            count = min(end - start, _piece(buffer), buffer.capacity - start % buffer.capacity)
            self._shards.append(_Shard(start, start + count, partial(buffer.copy_rows, start, count)))
        return partial(self._write, list(self._shards))

    # In the thread that writes.

    def _write(self, shards: Sequence[_Shard]) -> list[ShardEntry]:
        try:
            with report_write_errors(self.directory.parent / CHECKPOINTS, self.directory):
                make_directory(self.directory)
                sweep(self.directory)
                for shard in shards:
                    if shard.entry is None:
                        shard.entry = self._write_shard(shard)
                entries = [shard.entry for shard in shards if shard.entry is not None]
                self._remove_others({entry.path.name for entry in entries})
                sync_directory(self.directory)
                return entries
        except BaseException as error:
            for shard in shards:
                if shard.entry is None:
                    shard.give_up(error)
            raise

    def _write_shard(self, shard: _Shard) -> ShardEntry:
        tensors = {name: torch.from_numpy(array) for name, array in shard.take().items()}
        staged = staging_path(self.directory / "shard")
        try:
            file = write_file(staged, lambda file: torch.save({"first": shard.first, **tensors}, file))
            path = self.directory / f"{file.sha256}.pt"
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
        return ShardEntry(path, shard.first, shard.end - shard.first, file)

    def _adopt(self, entry: ShardEntry) -> ShardEntry:
        path = self.directory / entry.path.name
        if not is_same_file(path, entry.path):
            path.unlink(missing_ok=True)
            link_or_copy(entry.path, path, sync=True)
        return replace(entry, path=path)

    def _remove_others(self, wanted: set[str]) -> None:
        """Removes what the ring has overwritten, or a process that was killed wrote later than what is gone on from."""
        for path in self.directory.glob("*.pt"):
            if path.name not in wanted:
                path.unlink()


def load_replay(checkpoint: Checkpoint, buffer: ReplayBuffer) -> list[ShardEntry]:
    """Fills a buffer with what was saved in a checkpoint, in the same places.

    Args:
        checkpoint: A verified checkpoint.
        buffer: Of the same capacity, environments and spaces.

    Returns:
        The checkpoint's shards.

    Raises:
        CheckpointError: It has no replay buffer, one that does not fit, or a damaged file, which is named.
    """
    entries = _entries(checkpoint)
    total = entries[-1].end if entries else 0
    oldest = max(0, total - buffer.capacity)
    if entries and entries[0].first > oldest:
        raise CheckpointError(
            f"{checkpoint.path} does not fit: its replay buffer holds the transitions {entries[0].first} to {total}, "
            f"and one of {buffer.capacity} would hold those from {oldest}"
        )
    for entry in entries:
        _read_shard(checkpoint, entry, buffer)
    buffer.total = total
    return entries


def describe_shards(shards: Sequence[ShardEntry]) -> list[dict[str, Any]]:
    """Returns the shards as the manifest's `extra` lists them."""
    return [{"first": shard.first, "count": shard.count, "file": shard.path.name} for shard in shards]


def find_shared_shards(directory: Path, shards: Sequence[ShardEntry]) -> set[str]:
    """Returns the names of the shards that a checkpoint's directory has as links to the very same files."""
    return {shard.path.name for shard in shards if is_same_file(directory / shard.path.name, shard.path)}


def _entries(checkpoint: Checkpoint) -> list[ShardEntry]:
    listed, manifest = checkpoint.manifest.extra.get(REPLAY), checkpoint.manifest
    if listed is None:
        raise CheckpointError(f"{checkpoint.path} has no replay buffer, which {checkpoint.algorithm} needs to go on")
    entries: list[ShardEntry] = []
    try:
        for shard in listed:
            first, count, name = int(shard["first"]), int(shard["count"]), shard["file"]
            if first < 0 or count < 1 or (entries and first != entries[-1].end):
                raise ValueError(f"{name} has the transitions {first} to {first + count}")
            entries.append(ShardEntry(checkpoint.path / name, first, count, manifest.files[name]))
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{checkpoint.path} is refused: its list of replay shards is wrong ({error})") from error
    return entries


def _read_shard(checkpoint: Checkpoint, entry: ShardEntry, buffer: ReplayBuffer) -> None:
    state = load_tensors(checkpoint, entry.path.name)
    try:
        if not isinstance(state, Mapping) or state.get("first") != entry.first:
            raise ValueError(f"it holds other things than the transitions from {entry.first}")
        arrays = {str(name): value.numpy() for name, value in state.items() if name != "first"}
        buffer.fill_rows(entry.first, entry.count, arrays)
    except (ValueError, AttributeError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{entry.path} is refused: {error}") from error


def _written(entry: ShardEntry) -> _Shard:
    shard = _Shard(entry.first, entry.end, entry=entry)
    shard.taken.set()
    return shard


def _piece(buffer: ReplayBuffer) -> int:
    """Returns the transitions of a full shard, whole rows."""
    row_bytes = buffer.nbytes * buffer.num_envs // buffer.capacity
    return max(1, max(PIECE_BYTES, buffer.nbytes // 256) // row_bytes) * buffer.num_envs


def _on_disk(entry: ShardEntry) -> bool:
    try:
        return entry.path.stat().st_size == entry.file.size
    except FileNotFoundError:
        return False
