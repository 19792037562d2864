"""Saves checkpoints in a second thread while training continues.

The training thread copies the states, because training continues to change them; a replay buffer, which may be large,
is not copied (`replay_shards.py`). The saving thread serialises, hashes, syncs, renames and removes old checkpoints,
one checkpoint at a time. Training learns of a complete checkpoint at a moment that depends on its own steps, never on
the speed of the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rl_training.config.serialization import WrittenConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError, CheckpointNotWritten
from rl_training.runs.locks import require_not_taken_over
from rl_training.runs.progress import Progress
from rl_training.runtime.checkpoint import (
    BEST_RETURN,
    Checkpoint,
    WriteShards,
    find_best,
    has_later,
    require_finite,
    to_plain,
    write_best,
)
from rl_training.runtime.checkpoint.reading import report_write_errors
from rl_training.runtime.run_utils import TrainingRun, save_training_checkpoint
from rl_training.system.durable_files import sync_directory, sync_file

logger = logging.getLogger(__name__)

LAST_PAUSES = (1.0, 3.0, 6.0)
"""The pauses in seconds before each new try to write the last checkpoint of a run."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The content of a checkpoint besides the progress; see `write_checkpoint`."""

    policy: Mapping[str, Any]
    trainer: Mapping[str, Any]
    extra: Mapping[str, Any]
    shards: WriteShards | None
    """Writes the sealed shards of the replay buffer; None without a replay buffer."""
    files: Collection[Path] = ()
    """Files that callbacks have written, such as metrics, which a resume would not write again. They must be on disk
    before the checkpoint."""


def require_no_later_checkpoint(run: TrainingRun, checkpoint: Checkpoint) -> None:
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
    """Saves the checkpoints of a run; call its methods in the training thread.

    Args:
        run: The run.
        config: The settings of the run.
        on_complete: Called with each complete checkpoint, and whether it is the best so far.
    """

    def __init__(self, run: TrainingRun, config: TrainConfig, on_complete: Callable[[Checkpoint, bool], None]) -> None:
        self.failed = False
        """Whether the checkpoint being written has failed; `end` logs why."""
        self._run, self._config, self._on_complete = run, config, on_complete
        self._written = WrittenConfig(config)
        # If two threads of a process had torch's own threads, these would no longer wait in readiness for training's.
        self._thread = ThreadPoolExecutor(1, "saver", torch.set_num_threads, (1,))
        self._saving: Future[Checkpoint] | None = None
        self._progress = Progress()
        """The progress object of training, as passed to the latest `begin`."""
        self._moment: tuple[Any, ...] | None = None
        self._last_step = 0
        self._to_sync: set[Path] = set()
        """Files that callbacks have written since the last complete checkpoint."""
        self._best_being_written: float | None = None
        self._best_on_disk: float | None = None
        self._best_step: int | None = None
        """The step of the best complete checkpoint."""
        self.lost_best: dict[str, Any] | None = None
        """The step of the resume that found the best checkpoint missing, its mean return, and the reason."""

    def resume(self, progress: Progress, opened: Checkpoint) -> Checkpoint | None:
        """Resumes a run: returns its best checkpoint and sets `progress.best_return` accordingly.

        Args:
            progress: The progress in `opened`.
            opened: The checkpoint. It may be the best itself if the run ended before that was recorded. If it is of
                another run, from which this one is forked, this run has no best policy yet.
        """
        if opened.run_uid != self._run.run_uid:
            progress.best_return = None
            return None
        evaluated_here = progress.last_evaluation == opened.num_timesteps
        best = find_best(self._run.checkpoints, opened, progress.best_return, evaluated_here=evaluated_here)
        if best.lost and best.return_mean is not None:
            self.lost_best = {
                "num_timesteps": opened.num_timesteps,
                "return_mean": best.return_mean,
                "reason": best.lost,
            }
            logger.warning(
                "the best checkpoint is lost: %s; a later one is the best once its mean return is at least %g",
                best.lost,
                best.return_mean,
            )
        self._last_step, progress.best_return = opened.num_timesteps, best.return_mean
        self._best_on_disk = best.return_mean
        self._best_step = None if best.checkpoint is None else best.checkpoint.num_timesteps
        return best.checkpoint

    def is_due(self, num_timesteps: int) -> bool:
        """Returns whether `checkpoint.every` asks for a checkpoint at this step."""
        every = self._config.checkpoint.every
        return num_timesteps // every > self._last_step // every

    def begin(self, progress: Progress, take: Callable[[], Contents], *, is_best: bool = False) -> None:
        """Begins a checkpoint and returns once the states are copied; does nothing if this moment is already saved.

        Args:
            progress: The progress of training.
            take: Returns the rest of the content.
            is_best: Whether the evaluation of the policy, `progress.best_return`, is the best so far.

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
            extra={**taken.extra, BEST_RETURN: progress.best_return if is_best or step == self._best_step else None},
            files=tuple(self._to_sync),
            policy=to_plain(taken.policy, "policy", copy=True),
            trainer=to_plain({**taken.trainer, "progress": progress.to_dict()}, "trainer", copy=True),
        )
        require_finite(contents.policy, step)
        self._saving = self._thread.submit(partial(self._write, step, contents, best_return))
        self._saving.add_done_callback(self._note)
        self._progress, self._moment, self._last_step, self._best_being_written = progress, moment, step, best_return

    def end(self) -> None:
        """Waits for the checkpoint being written, if any; logs a failure, which does not end training."""
        try:
            self._end()
        except CheckpointNotWritten as error:
            logger.warning("%s; training continues, and saves again when the next checkpoint is due", error)

    def save(self, progress: Progress, take: Callable[[], Contents], pauses: Iterable[float] = ()) -> None:
        """Saves a checkpoint and waits until it is complete; tries again after each pause if it can't be written.

        Raises:
            CheckpointNotWritten: The last try failed.
            NumericError: The policy has a NaN or infinity; nothing is written.
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
        """Writes shards that no checkpoint needs yet; logs a failure, and the next checkpoint tries again."""
        self._thread.submit(partial(self._write_ahead, shards))

    def close(self) -> None:
        """Waits until everything is written, and ends the thread."""
        try:
            self.end()
        finally:
            self._thread.shutdown()

    def _end(self) -> None:
        if self._saving is None:
            return
        wait([self._saving])
        saving, self._saving, self.failed = self._saving, None, False
        is_best = self._best_being_written is not None
        try:
            checkpoint = saving.result()
        except Exception:
            self._moment = None
            if is_best:
                self._progress.best_return = self._best_on_disk
            raise
        self._to_sync.clear()
        if is_best:
            self._best_on_disk, self._best_step = self._best_being_written, checkpoint.num_timesteps
            self.lost_best = None
        self._on_complete(checkpoint, is_best)

    def _note(self, saving: Future[Checkpoint]) -> None:
        self.failed = saving.exception() is not None

    # The methods below run in the saving thread.

    def _write(self, num_timesteps: int, contents: Contents, best_return: float | None) -> Checkpoint:
        require_not_taken_over(self._run.run_dir)
        self._sync(contents.files)
        checkpoint = save_training_checkpoint(
            self._run,
            self._written,
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
            # A missing file was removed by its writer.
            with report_write_errors(self._run.checkpoints, path), suppress(FileNotFoundError):
                sync_directory(path) if path.is_dir() else sync_file(path)

    def _write_ahead(self, shards: WriteShards) -> None:
        try:
            require_not_taken_over(self._run.run_dir)
            shards()
        except Exception as error:
            logger.warning("%s; the next checkpoint tries again", error)
