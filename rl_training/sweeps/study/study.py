"""The rounds of a sweep in the study database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from rl_training.errors import ReceivedError
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.plan import RunRecord, Step
from rl_training.sweeps.segments import from_text, to_text
from rl_training.sweeps.study.database import Database
from rl_training.sweeps.study.lease import Lease
from rl_training.sweeps.study.tables import RUNS, STEPS, SWEEPS


@dataclass(frozen=True)
class StoredRound:
    """A round as the database holds it."""

    steps: tuple[Step, ...]
    records: Mapping[tuple[int, int], RunRecord]
    """The runs that have ended, by position of the step in the round, and seed."""

    @property
    def is_complete(self) -> bool:
        """Whether all runs of all steps have ended."""
        return all((i, seed) in self.records for i, step in enumerate(self.steps) for seed in step.seeds)


def begin_sweep(database: Database, uid: str, name: str, digest: str, *, new: bool = False) -> str:
    """Returns the `uid` of the newest unfinished sweep with the same settings, or adds a sweep and returns its `uid`.

    Args:
        database: The study database.
        uid: The identity of the sweep if it is added.
        name: The name of the sweep.
        digest: The hash of all settings that decide the sweep's result.
        new: Whether to add a sweep even if there is an unfinished one.
    """

    def find_or_add(connection: Connection) -> str:
        same = (SWEEPS.c.digest == digest) & SWEEPS.c.finished.is_(False)
        wanted = SWEEPS.c.uid == uid if new else same | (SWEEPS.c.uid == uid)
        newest = select(SWEEPS.c.uid).where(wanted).order_by(SWEEPS.c.begun.desc(), SWEEPS.c.uid).limit(1)
        found = connection.execute(newest).scalar_one_or_none()
        if found is not None:
            return str(found)
        row = {"uid": uid, "digest": digest, "name": name, "finished": False, "begun": database.now}
        connection.execute(insert(SWEEPS).values(row))
        return uid

    return database.change(find_or_add)


class Study:
    """A sweep in the study database, as the process that holds its lease reads and writes it.

    Args:
        database: The study database.
        lease: The lease of the sweep, which is held.
    """

    def __init__(self, database: Database, lease: Lease) -> None:
        self._database, self._lease, self._uid = database, lease, lease.sweep_uid

    def load_rounds(self) -> list[StoredRound]:
        """Returns the rounds in their order; the last one may be incomplete.

        Raises:
            ReceivedError: The database holds something else.
        """
        steps, runs = self._database.change(self._read)
        rounds: list[tuple[list[Step], dict[tuple[int, int], RunRecord]]] = []
        try:
            for number, _, text in steps:
                if number == len(rounds):
                    rounds.append(([], {}))
                rounds[number][0].append(from_text(text, Step))
            for number, position, text in runs:
                record = from_text(text, RunRecord)
                rounds[number][1][position, record.seed] = record
        except (NotReadable, IndexError) as error:
            raise ReceivedError(f"sweep {self._uid} in {self._database.address} is damaged: {error}") from error
        return [StoredRound(tuple(steps), records) for steps, records in rounds]

    def begin_round(self, number: int, steps: Sequence[Step]) -> StoredRound:
        """Writes the steps of a new round, and returns the round as it can be read again.

        Raises:
            SweepTakenOver: Another process runs the sweep.
        """
        texts = [to_text(step) for step in steps]
        rows = [{"sweep_uid": self._uid, "round": number, "position": i, "step": text} for i, text in enumerate(texts)]

        def write(connection: Connection) -> None:
            self._lease.require(connection)
            there = select(func.count()).where(STEPS.c.sweep_uid == self._uid, STEPS.c.round == number)
            if not connection.execute(there).scalar_one():  # else the reply to the first try was lost
                connection.execute(insert(STEPS), rows)

        self._database.change(write)
        return StoredRound(tuple(from_text(text, Step) for text in texts), {})

    def write_record(self, number: int, position: int, record: RunRecord) -> None:
        """Writes the record of a run that has ended; the first record stays.

        Raises:
            SweepTakenOver: Another process runs the sweep.
        """
        key = {"sweep_uid": self._uid, "round": number, "position": position, "seed": record.seed}

        def write(connection: Connection) -> None:
            self._lease.require(connection)
            there = select(func.count()).where(*(RUNS.c[name] == value for name, value in key.items()))
            if not connection.execute(there).scalar_one():
                connection.execute(insert(RUNS).values(**key, record=to_text(record)))

        self._database.change(write)

    def require_lease(self) -> None:
        """Checks that this process still runs the sweep.

        Raises:
            SweepTakenOver: Another process runs the sweep.
        """
        self._database.change(self._lease.require)

    def finish(self) -> None:
        """Marks the sweep as finished, so that the same settings begin another one.

        Raises:
            SweepTakenOver: Another process runs the sweep.
        """

        def write(connection: Connection) -> None:
            self._lease.require(connection)
            connection.execute(update(SWEEPS).where(SWEEPS.c.uid == self._uid).values(finished=True))

        self._database.change(write)

    def _read(self, connection: Connection) -> tuple[Sequence[Any], Sequence[Any]]:
        steps = select(STEPS.c.round, STEPS.c.position, STEPS.c.step).where(STEPS.c.sweep_uid == self._uid)
        runs = select(RUNS.c.round, RUNS.c.position, RUNS.c.record).where(RUNS.c.sweep_uid == self._uid)
        return (
            connection.execute(steps.order_by(STEPS.c.round, STEPS.c.position)).all(),
            connection.execute(runs.order_by(RUNS.c.round, RUNS.c.position)).all(),
        )
