"""Keeps a replay buffer on disk in immutable files that checkpoints share, so that a save writes only new transitions.

A shard holds consecutive transitions, by their numbers in the run, and is named by the hash of its bytes; the ring of
the buffer is a window over the shards. A run keeps the shards of the current window under `replay/`. A checkpoint has
them as hard links, so it is complete by itself, and a shard is deleted with the last checkpoint that needs it.

The training thread seals a shard: it only decides which transitions the shard holds. The saving thread then copies them
out of the ring, one shard at a time so that there is never a second buffer in memory, and writes them. A step of
training that would overwrite sealed transitions waits until they are copied.
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
from rl_training.runtime.checkpoint.staging import prepare
from rl_training.system.durable_files import (
    is_same_file,
    link_or_copy,
    make_directory,
    staging_path,
    sync_directory,
    write_file,
)
from rl_training.system.file_entry import FileEntry

PIECE_BYTES = 16 * 2**20
"""The largest size of a shard, unless 1/256 of the buffer is more."""


@dataclass(frozen=True)
class ShardEntry:
    """A shard that is complete on disk."""

    path: Path
    """The file, named by its sha256."""
    first: int
    """The number of its first transition in the run."""
    count: int
    """The number of transitions."""
    file: FileEntry

    @property
    def end(self) -> int:
        """The number of the transition after its last."""
        return self.first + self.count


WriteShards = Callable[[], list[ShardEntry]]
"""Writes sealed shards in the order of sealing, in any one thread; returns all shards of the ring in order.

Raises `CheckpointNotWritten` if a shard can't be written; complete shards stay, and nothing partial is left.
"""


@dataclass(eq=False)
class _Shard:
    """Transitions that share a file: sealed in the ring, being written, or on disk."""

    first: int
    end: int
    copy: Callable[[], dict[str, NDArray[Any]]] | None = None
    """Copies the transitions out of the ring; None once that has happened or was given up."""
    entry: ShardEntry | None = None
    """The file, once it is complete."""
    error: BaseException | None = None
    """The reason why writing was given up."""
    taken: threading.Event = field(default_factory=threading.Event)
    """Set once the rows in the ring may be overwritten."""

    def take(self) -> dict[str, NDArray[Any]]:
        """Returns a copy of the transitions and frees their rows in the ring."""
        if self.copy is None:
            raise self.error or AssertionError("a shard is written once")
        rows, self.copy = self.copy(), None
        self.taken.set()
        return rows

    def give_up(self, error: BaseException) -> None:
        """Frees the rows in the ring; other attempts to write this shard raise the same error."""
        self.copy, self.error = None, error
        self.taken.set()


class ReplayStore:
    """The shards of a run's replay buffer; call its methods in the training thread.

    Args:
        directory: The folder `replay` of the run directory; made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._shards: list[_Shard] = []

    def seal(self, buffer: ReplayBuffer) -> WriteShards:
        """Seals all transitions that no shard has yet.

        Returns:
            A function that writes the sealed shards and returns all shards of the buffer, for `write_checkpoint`.
        """
        self._drop_overwritten(buffer)
        failed = next((i for i, shard in enumerate(self._shards) if shard.error is not None), len(self._shards))
        del self._shards[failed:]  # the buffer still has these transitions
        if not all(_is_on_disk(shard.entry) for shard in self._shards if shard.entry is not None):
            self._shards.clear()  # somebody has removed files; the buffer has their transitions too
        return self._seal(buffer, buffer.total)

    def seal_pieces(self, buffer: ReplayBuffer) -> WriteShards | None:
        """Seals full shards only, so that the next save, which may be in a hurry, has little left to write.

        Returns:
            As `seal`; None if no shard is full, or if the last shard could not be written, which the next save retries.
        """
        start, piece = self._start(buffer), _count_piece(buffer)
        if buffer.total - start < piece or (self._shards and self._shards[-1].error is not None):
            return None
        self._drop_overwritten(buffer)
        return self._seal(buffer, start + (buffer.total - start) // piece * piece)

    def make_room(self, buffer: ReplayBuffer) -> None:
        """Waits until the next step of the buffer overwrites no sealed transitions that have yet to be copied."""
        overwritten = buffer.total + buffer.num_envs - buffer.capacity  # exclusive
        while self._shards and self._shards[0].first < overwritten:
            self._shards[0].taken.wait()
            if self._shards[0].end > overwritten:
                return
            del self._shards[0]

    def load(self, checkpoint: Checkpoint, buffer: ReplayBuffer) -> None:
        """Fills the buffer from a checkpoint of this run or another, and continues with its shards.

        Raises:
            CheckpointError: The checkpoint has no replay buffer, one that does not fit, or a damaged file.
            CheckpointNotWritten: The directory can't be written.
        """
        entries = load_replay(checkpoint, buffer)
        with report_write_errors(self.directory.parent / CHECKPOINTS, self.directory):
            make_directory(self.directory)
            self._shards = [_wrap_written(self._adopt(entry)) for entry in entries]
            self._remove_others({entry.path.name for entry in entries})
            sync_directory(self.directory)

    def cut_newest(self, buffer: ReplayBuffer, env_indices: Sequence[int]) -> None:
        """Calls `buffer.cut_newest` after a load; the next save writes the changed shard again."""
        buffer.cut_newest(env_indices)
        del self._shards[-1:]

    def _start(self, buffer: ReplayBuffer) -> int:
        return max(self._shards[-1].end if self._shards else 0, buffer.oldest)

    def _drop_overwritten(self, buffer: ReplayBuffer) -> None:
        self._shards = [shard for shard in self._shards if shard.end > buffer.oldest]

    def _seal(self, buffer: ReplayBuffer, end: int) -> WriteShards:
        while (start := self._start(buffer)) < end:
            count = min(end - start, _count_piece(buffer), buffer.capacity - start % buffer.capacity)
            self._shards.append(_Shard(start, start + count, partial(buffer.copy_rows, start, count)))
        return partial(self._write, list(self._shards))

    # The methods below run in the thread that writes.

    def _write(self, shards: Sequence[_Shard]) -> list[ShardEntry]:
        try:
            with report_write_errors(self.directory.parent / CHECKPOINTS, self.directory):
                prepare(self.directory)
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
        """Removes shards that the ring has overwritten, or that a killed process wrote after the resumed checkpoint."""
        for path in self.directory.glob("*.pt"):
            if path.name not in wanted:
                path.unlink()


def load_replay(checkpoint: Checkpoint, buffer: ReplayBuffer) -> list[ShardEntry]:
    """Fills a buffer with the transitions of a checkpoint, each in the place that it had.

    Args:
        checkpoint: The verified checkpoint.
        buffer: A buffer of the same capacity, environments and spaces.

    Returns:
        The shards of the checkpoint.

    Raises:
        CheckpointError: The checkpoint has no replay buffer, one that does not fit, or a damaged file.
    """
    entries = _list_entries(checkpoint)
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
    """Returns the list of shards for the manifest's `extra`."""
    return [{"first": shard.first, "count": shard.count, "file": shard.path.name} for shard in shards]


def find_shared_shards(directory: Path, shards: Sequence[ShardEntry]) -> set[str]:
    """Returns the names of the shards of which a directory has links to the same files."""
    return {shard.path.name for shard in shards if is_same_file(directory / shard.path.name, shard.path)}


def _list_entries(checkpoint: Checkpoint) -> list[ShardEntry]:
    listed, manifest = checkpoint.manifest.extra.get(REPLAY), checkpoint.manifest
    if listed is None:
        raise CheckpointError(f"{checkpoint.path} has no replay buffer, which {checkpoint.algorithm} needs to resume")
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
            raise ValueError(f"it does not hold the transitions from {entry.first}")
        arrays = {str(name): value.numpy() for name, value in state.items() if name != "first"}
        buffer.fill_rows(entry.first, entry.count, arrays)
    except (ValueError, AttributeError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{entry.path} is refused: {error}") from error


def _wrap_written(entry: ShardEntry) -> _Shard:
    shard = _Shard(entry.first, entry.end, entry=entry)
    shard.taken.set()
    return shard


def _count_piece(buffer: ReplayBuffer) -> int:
    """Returns the number of transitions in a full shard, in complete rows."""
    row_bytes = buffer.nbytes * buffer.num_envs // buffer.capacity
    return max(1, max(PIECE_BYTES, buffer.nbytes // 256) // row_bytes) * buffer.num_envs


def _is_on_disk(entry: ShardEntry) -> bool:
    try:
        return entry.path.stat().st_size == entry.file.size
    except FileNotFoundError:
        return False
