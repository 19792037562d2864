"""Saving while training goes on: the training thread hands over what a checkpoint holds, another thread writes it.

States are copied, since training goes on to change them; of a replay buffer, which may be large, nothing is
(`replay_shards.py`). Serialising, hashing, syncing to disk, renaming and removing old checkpoints are left to the other
thread, which takes things in order, one checkpoint at a time. When training hears of a checkpoint that is whole depends
on its own steps alone, never on how fast the disk is.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError, CheckpointNotWritten
from rl_training.runs.locks import require_not_taken_over
from rl_training.runs.progress import Progress
from rl_training.runtime.checkpoint import (
    Checkpoint,
    WriteShards,
    has_later,
    read_best,
    require_finite,
    to_plain,
    write_best,
)
from rl_training.runtime.checkpoint.reading import report_write_errors
from rl_training.runtime.run_utils import TrainingRun, save_training_checkpoint
from rl_training.system.durable_files import sync_directory, sync_file

logger = logging.getLogger(__name__)

LAST_PAUSES = (1.0, 3.0, 6.0)
"""Seconds after which a run's last checkpoint is tried again where it can't be written."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a checkpoint shall hold besides the progress; see `write_checkpoint`."""

    policy: Mapping[str, Any]
    trainer: Mapping[str, Any]
    extra: Mapping[str, Any]
    shards: WriteShards | None
    """Writes what the replay buffer has sealed; None without one."""
    files: Collection[Path] = ()
    """What callbacks have written: lines of metrics that a resume will not make again, evaluations. It must be on disk
    before the checkpoint is."""


def require_newest(run: TrainingRun, checkpoint: Checkpoint) -> None:
    """Checks, while the run's lock is held, that no other process has continued the run from a checkpoint.

    Raises:
        CheckpointError: The run has a later checkpoint.
    """
    if has_later(checkpoint, run.checkpoints):
        raise CheckpointError(
            f"the run in {run.run_dir} now has a later checkpoint than {checkpoint.path}: another process has trained "
            f"it meanwhile; resume it again"
        )


class Saver:
    """Saves a run. Its methods belong to the training thread.

    Args:
        run: The run.
        config: Its settings.
        whole: Is called with each checkpoint that is whole, and whether it is the best so far.
    """

    def __init__(self, run: TrainingRun, config: TrainConfig, whole: Callable[[Checkpoint, bool], None]) -> None:
        self.failed = False
        """Whether the checkpoint on the way could not be written; `end` says why."""
        self._run, self._config, self._whole = run, config, whole
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._saving: Future[Checkpoint] | None = None
        self._progress = Progress()
        """As it is in training, of the newest checkpoint that was begun."""
        self._moment: tuple[Any, ...] | None = None
        self._last_step = 0
        self._to_sync: set[Path] = set()
        """Files that no checkpoint which is on disk has brought there."""
        self._best_on_the_way: float | None = None
        self._best_on_disk: float | None = None

    def resume(self, progress: Progress, opened: Checkpoint) -> Checkpoint | None:
        """Goes on with a run; returns its best checkpoint and sets the progress's `best_return` by it.

        Args:
            progress: As it was in `opened`.
            opened: The checkpoint. It is the best itself, where the run ended before that could be recorded.
        """
        best = _best_so_far(self._run, progress, opened)
        self._last_step, self._best_on_disk = opened.num_timesteps, progress.best_return
        return best

    def due(self, num_timesteps: int) -> bool:
        """Returns whether `checkpoint.every` asks for a checkpoint at a step."""
        every = self._config.checkpoint.every
        return num_timesteps // every > self._last_step // every

    def begin(self, progress: Progress, take: Callable[[], Contents], *, is_best: bool = False) -> None:
        """Begins a checkpoint, and returns when the states are copied; does nothing where this moment is saved.

        Args:
            progress: How far training is.
            take: Returns what else to save.
            is_best: Whether the policy's evaluation is the best so far, `progress.best_return`.

        Raises:
            NumericError: The policy has a NaN or infinity; nothing is written.
        """
        self.end()
        moment = (progress.num_timesteps, progress.phase, progress.iteration, progress.last_evaluation)
        if moment == self._moment:
            return
        taken, step, best_return = take(), progress.num_timesteps, progress.best_return if is_best else None
        self._to_sync.update(taken.files)
        contents = replace(
            taken,
            files=tuple(self._to_sync),
            policy=to_plain(taken.policy, "policy", copy=True),
            trainer=to_plain({**taken.trainer, "progress": asdict(progress)}, "trainer", copy=True),
        )
        require_finite(contents.policy, step)
        self._saving = self._thread.submit(partial(self._write, step, contents, best_return))
        self._saving.add_done_callback(self._note)
        self._progress, self._moment, self._last_step, self._best_on_the_way = progress, moment, step, best_return

    def end(self) -> None:
        """Waits for the checkpoint on the way, if any; one that can't be written is said, and does not end training."""
        try:
            self._end()
        except CheckpointNotWritten as error:
            logger.warning("%s; training goes on, and saves again when the next checkpoint is due", error)

    def save(self, progress: Progress, take: Callable[[], Contents], pauses: Iterable[float] = ()) -> None:
        """Saves as `begin` and waits for the end; tries again after pauses where the checkpoint can't be written.

        Raises:
            CheckpointNotWritten: From the last try.
            NumericError: As `begin`.
        """
        for pause in (*pauses, None):
            self.begin(progress, take)
            try:
                self._end()
                break
            except CheckpointNotWritten as error:
                if pause is None:
                    raise
                logger.warning("%s; trying again in %g s", error, pause)
                time.sleep(pause)

    def write_ahead(self, shards: WriteShards) -> None:
        """Has shards written that no checkpoint needs yet; what goes wrong is said, and left to the next checkpoint."""
        self._thread.submit(partial(self._write_ahead, shards))

    def close(self) -> None:
        """Waits until everything is written that was handed over, and ends the thread."""
        try:
            self.end()
        finally:
            self._thread.shutdown()

    def _end(self) -> None:
        if self._saving is None:
            return
        wait([self._saving])
        saving, self._saving, self.failed = self._saving, None, False
        is_best = self._best_on_the_way is not None
        try:
            checkpoint = saving.result()
        except Exception:
            self._moment = None
            if is_best:
                self._progress.best_return = self._best_on_disk
            raise
        self._to_sync.clear()
        if is_best:
            self._best_on_disk = self._best_on_the_way
        self._whole(checkpoint, is_best)

    def _note(self, saving: Future[Checkpoint]) -> None:
        self.failed = saving.exception() is not None

    # In the other thread.

    def _write(self, num_timesteps: int, contents: Contents, best_return: float | None) -> Checkpoint:
        require_not_taken_over(self._run.run_dir)
        self._sync(contents.files)
        checkpoint = save_training_checkpoint(
            self._run,
            self._config,
            num_timesteps=num_timesteps,
            policy=contents.policy,
            trainer=contents.trainer,
            extra=contents.extra,
            shards=contents.shards() if contents.shards is not None else None,
        )
        if best_return is not None:
            write_best(self._run.checkpoints, checkpoint, best_return)
        return checkpoint

    def _sync(self, paths: Collection[Path]) -> None:
        for path in (*paths, *{path.parent for path in paths}):
            with report_write_errors(self._run.checkpoints, path), suppress(FileNotFoundError):  # removed by its writer
                sync_directory(path) if path.is_dir() else sync_file(path)

    def _write_ahead(self, shards: WriteShards) -> None:
        try:
            require_not_taken_over(self._run.run_dir)
            shards()
        except Exception as error:
            logger.warning("%s; the next checkpoint tries again", error)


def _best_so_far(run: TrainingRun, progress: Progress, opened: Checkpoint) -> Checkpoint | None:
    try:
        best = read_best(run.checkpoints, opened)
    except CheckpointError as error:
        logger.warning("%s; the next evaluation begins a new best", error)
        best = None
    recorded = -math.inf if best is None else best[1]
    evaluated_here = progress.last_evaluation == opened.num_timesteps
    if progress.best_return is not None and progress.best_return > recorded and evaluated_here:
        write_best(run.checkpoints, opened, progress.best_return)
        return opened
    progress.best_return = None if best is None else recorded
    return None if best is None else best[0]
