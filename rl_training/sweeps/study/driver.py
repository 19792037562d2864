"""Drives a sweep: plans a round, gives its runs to the engine, and keeps the records, until nothing is left to plan.

Everything that decides what happens next is in the study database, so a driver that is killed is followed by one that
does the same. What a driver keeps in memory, such as how often a segment was lost, decides nothing but when to give up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from rl_training.errors import RunFailed, one_line
from rl_training.run_layout import CHECKPOINTS, STEP
from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.engines.engine import Engine, Lost, Segment
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.plan import Round, RunRecord, Step
from rl_training.sweeps.segments import find_trial_dir
from rl_training.sweeps.study.database import Database
from rl_training.sweeps.study.lease import Lease, SweepTakenOver
from rl_training.sweeps.study.rounds import SegmentMaker, complete_round, require_planned
from rl_training.sweeps.study.study import StoredRound, Study
from rl_training.sweeps.trial_settings import format_point

logger = logging.getLogger(__name__)

MOST_LOSSES = 5
"""How often in a row a segment may be lost without a new checkpoint."""

LONGEST_PAUSE = 30.0
"""Longest time to wait, in seconds, before lost segments are tried again."""


class SweepPage(Protocol):
    """The page of a sweep, which people read while it runs."""

    @property
    def run_id(self) -> str | None:
        """The MLflow run above the runs of the trials; None without one."""

    def update(self, rounds: Sequence[Round]) -> None:
        """Shows the complete rounds."""


Plan = Callable[[Sequence[Round]], list[Step]]


class Driver:
    """Drives one sweep.

    Args:
        sweep: The sweep.
        engine: What runs the trials.
        study: The sweep in the study database.
        page: The page of the sweep.
        stop: Asks the sweep to stop; it can be continued.
        offline: Whether the runs keep their data for MLflow in their directories.
    """

    def __init__(
        self, sweep: Sweep, engine: Engine, study: Study, page: SweepPage, stop: StopFlag, *, offline: bool = False
    ) -> None:
        self._sweep, self._engine, self._study = sweep, engine, study
        self._page, self._stop, self._offline = page, stop, offline

    def run(self, plan: Plan) -> tuple[list[Round], bool]:
        """Runs rounds until nothing is left to plan.

        Args:
            plan: Returns the steps of the next round from the complete rounds alone.

        Returns:
            The complete rounds, and whether the sweep is finished; it is not after a stop.

        Raises:
            RunFailed: A segment can't be trained, or every run of the first round failed.
            ReceivedError: The study database holds what the sweep has not planned.
            SweepTakenOver: Another process runs the sweep now.
        """
        stored = self._study.load_rounds()
        require_planned(self._sweep, stored)
        rounds = [complete_round(each) for each in stored if each.is_complete]
        incomplete = stored[len(rounds)] if len(stored) > len(rounds) else None
        if stored:
            logger.info("continuing sweep %s after %d complete rounds", self._sweep.uid, len(rounds))
            self._page.update(rounds)
        continued = incomplete is not None
        while not self._stop.requested:
            _require_success(rounds)
            if incomplete is None:
                steps = plan(rounds)
                if not steps:
                    return rounds, True
                incomplete = self._study.begin_round(len(rounds), steps)
            incomplete = self._run_round(rounds, incomplete, continued)
            if not incomplete.is_complete:
                break
            rounds.append(complete_round(incomplete))
            incomplete, continued = None, False
            self._page.update(rounds)
        return rounds, False

    def _run_round(self, rounds: Sequence[Round], stored: StoredRound, continued: bool) -> StoredRound:
        """Runs what is left of a round; returns the round, which is incomplete after a stop."""
        maker = SegmentMaker(
            self._sweep, rounds, stored.steps, self._page.run_id, offline=self._offline, continued=continued
        )
        records, losses = dict(stored.records), _Losses()
        waiting: dict[str, tuple[int, Segment]] = {}
        for i, step in enumerate(stored.steps):
            for seed in step.seeds:
                if (i, seed) in records:
                    continue
                made = maker.make(step, seed)
                if isinstance(made, RunRecord):
                    records[i, seed] = self._keep(len(rounds), i, step, made)
                else:
                    waiting[made.key] = (i, made)
        while waiting and not self._stop.requested:
            losses.pause(self._stop)
            for segment, result in self._engine.run([segment for _, segment in waiting.values()], self._stop):
                i, _ = waiting[segment.key]
                if isinstance(result, Lost):
                    losses.note(segment, result)
                    waiting[segment.key] = (i, replace(segment, begun=True))
                    continue
                del waiting[segment.key]
                records[i, segment.seed] = self._keep(len(rounds), i, stored.steps[i], result)
        return StoredRound(stored.steps, records)

    def _keep(self, number: int, position: int, step: Step, record: RunRecord) -> RunRecord:
        self._study.write_record(number, position, record)
        logger.info(format_record(step, record))
        return record


class _Losses:
    """Counts how often segments were lost."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        self._last = 0

    def note(self, segment: Segment, lost: Lost) -> None:
        """Counts a loss.

        Raises:
            RunFailed: The segment was lost too often without a new checkpoint.
        """
        count, step = self._counts.get(segment.key, (0, -1))
        newest = _find_newest_step(segment)
        count = 1 if newest > step else count + 1
        self._counts[segment.key] = (count, newest)
        self._last = max(count for count, _ in self._counts.values())
        if count >= MOST_LOSSES:
            raise RunFailed(
                f"trial {segment.key} was lost {count} times without a new checkpoint: {lost.reason}; fix the cause, "
                f"then continue the sweep with the same command"
            )
        logger.warning("trial %s was lost: %s; it is tried again", segment.key, lost.reason)

    def pause(self, stop: StopFlag) -> None:
        """Waits before lost segments are tried again, longer each time."""
        deadline = time.monotonic() + (min(2.0 ** (self._last - 1), LONGEST_PAUSE) if self._last else 0.0)
        while time.monotonic() < deadline and not stop.requested:
            time.sleep(0.1)


def _find_newest_step(segment: Segment) -> int:
    """Returns the step of the newest checkpoint on this machine; -1 if there is none."""
    folders = (find_trial_dir(segment.sweep_uid, segment.key) / CHECKPOINTS).glob(f"{STEP}*")
    names = (path.name.removeprefix(STEP) for path in folders)
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _require_success(rounds: Sequence[Round]) -> None:
    """Checks after the first round that not all runs failed, which would mean that all others would fail too.

    Raises:
        RunFailed: They did.
    """
    runs = [run for each in rounds[:1] for outcome in each.outcomes for run in outcome.runs]
    if len(rounds) != 1 or any(run.state != "failed" for run in runs):
        return
    error = next(run.error for run in runs if run.error is not None)
    raise RunFailed(
        f"every run of the first round has failed, so the sweep ends: {error}; when the cause is mended, begin "
        f"another sweep with --new"
    )


@contextmanager
def hold_sweep(database: Database, sweep_uid: str, stop: StopFlag) -> Iterator[Study]:
    """Yields a sweep in the study database, which no other process may change within the block.

    Args:
        database: The study database.
        sweep_uid: The sweep.
        stop: Is set if another process takes the sweep over.

    Raises:
        AlreadyTraining: Another process, which the message names, runs the sweep.
        SweepTakenOver: Another process has taken the sweep over within the block.
    """
    lost = False

    def note_loss() -> None:
        nonlocal lost
        lost = True
        stop.request("signal")

    with Lease(database, sweep_uid).hold(note_loss) as lease:
        yield Study(database, lease)
    if lost:
        raise SweepTakenOver(
            f"sweep {sweep_uid} was taken over by another process; this process has stopped its trials"
        )


def format_record(step: Step, record: RunRecord) -> str:
    """Returns a line about a run that has ended: its trial, settings, state and score, without secrets."""
    point = format_point(step.params)
    if step.phase == "confirmation":
        point = f"confirmation: {point or 'base config'}"
    name = f"trial {step.trial}, seed {record.seed}" + (f" ({point})" if point else "")
    if record.state == "failed":
        return f"{name}: failed: {one_line(record.error)}"
    how = "" if record.state == "complete" else f"{record.state} at step {record.num_timesteps:,}: "
    return f"{name}: {how}" + ("no evaluation" if record.newest is None else f"{record.newest:,.2f}")
