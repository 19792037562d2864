"""The lease of a sweep: one process may change it, and every change checks that the process still holds the lease.

The lease is a row of the database, which its holder renews by the database's clock. A lease that was not renewed for
`LEASE_SECONDS` is free, and so is one whose process on this host is gone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import psutil  # type: ignore[import-untyped]
from sqlalchemy import Connection, Row, or_, select, update

from rl_training.errors import AlreadyTraining, RunFailed
from rl_training.sweeps.study.database import Database, StudyLost
from rl_training.sweeps.study.tables import SWEEPS

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""Time without renewal after which another process may take the lease."""

POLL_SECONDS = 0.5
"""Interval at which a process that waits for a lease looks at it."""


class SweepTakenOver(RunFailed):
    """Another process runs the sweep now, so this one writes nothing more to it."""


class Lease:
    """The lease of one sweep.

    Args:
        database: The study database.
        sweep_uid: The sweep, which must be in the database.
        seconds: Time without renewal after which the lease is free.
    """

    def __init__(self, database: Database, sweep_uid: str, seconds: float = LEASE_SECONDS) -> None:
        self._database, self._seconds, self.sweep_uid = database, seconds, sweep_uid
        self._me = uuid.uuid4().hex

    @contextmanager
    def hold(self, on_lost: Callable[[], object] = lambda: None) -> Iterator[Lease]:
        """Takes the lease, renews it while the block runs, and frees it.

        Args:
            on_lost: Called in another thread if another process has taken the lease.

        Raises:
            AlreadyTraining: Another process, which the message names, runs the sweep.
        """
        self._take()
        over = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(over, on_lost), daemon=True)
        renewal.start()
        try:
            yield self
        finally:
            over.set()
            renewal.join()
            self._free()

    def require(self, connection: Connection) -> None:
        """Renews the lease within a transaction that changes the sweep; call it first in the transaction.

        The row stays locked until the transaction ends, so no other process can take the lease before.

        Raises:
            SweepTakenOver: Another process has taken the lease.
        """
        mine = (SWEEPS.c.uid == self.sweep_uid) & (SWEEPS.c.holder == self._me)
        renewed = connection.execute(update(SWEEPS).where(mine).values(renewed=self._database.now))
        if renewed.rowcount != 1:
            row = self._read(connection)
            holder = "another process" if row is None or row.holder is None else _describe(row)
            raise SweepTakenOver(f"sweep {self.sweep_uid} was taken over by {holder}; this process writes nothing more")

    def _take(self) -> None:
        """Takes the lease when it is free; waits for one that nobody renews."""
        seen: float | None = None
        while (row := self._database.change(self._try_to_take)) is not None:
            if _is_gone(row):
                self._database.change(partial(self._evict, holder=row.holder))
                continue
            if row.holder_host == socket.gethostname() or (seen is not None and row.renewed > seen):
                raise AlreadyTraining(
                    f"sweep {self.sweep_uid} is run already by {_describe(row)}; wait for it to end, or stop it first"
                )
            if seen is None:
                logger.info("waiting whether %s, which holds the sweep, still runs it", _describe(row))
            seen = row.renewed
            time.sleep(min(POLL_SECONDS, self._seconds / 10))

    def _try_to_take(self, connection: Connection) -> Row[Any] | None:
        """Returns None if the lease is ours now, or else its row."""
        now = self._database.now
        free = or_(SWEEPS.c.holder.is_(None), SWEEPS.c.holder == self._me, SWEEPS.c.renewed < now - self._seconds)
        process = psutil.Process()
        taken = connection.execute(
            update(SWEEPS)
            .where(SWEEPS.c.uid == self.sweep_uid, free)
            .values(
                holder=self._me,
                holder_host=socket.gethostname(),
                holder_pid=os.getpid(),
                holder_created=process.create_time(),
                held_since=now,
                renewed=now,
            )
        )
        return None if taken.rowcount == 1 else self._read(connection)

    def _read(self, connection: Connection) -> Row[Any] | None:
        return connection.execute(select(SWEEPS).where(SWEEPS.c.uid == self.sweep_uid)).one_or_none()

    def _evict(self, connection: Connection, holder: str) -> None:
        held = (SWEEPS.c.uid == self.sweep_uid) & (SWEEPS.c.holder == holder)
        connection.execute(update(SWEEPS).where(held).values(holder=None))

    def _renew(self, over: threading.Event, on_lost: Callable[[], object]) -> None:
        while not over.wait(self._seconds / 4):
            try:
                self._database.change(self.require)
            except SweepTakenOver as error:
                logger.error("%s", error)
                on_lost()
                return
            except StudyLost as error:  # the next change of the sweep ends it
                logger.warning("%s", error)

    def _free(self) -> None:
        try:
            self._database.change(partial(self._evict, holder=self._me), seconds=5.0)
        except StudyLost as error:
            logger.warning("%s; the lease of the sweep ends in %.0f s", error, self._seconds)


def _is_gone(row: Row[Any]) -> bool:
    """Returns whether the holder was a process of this host that no longer exists."""
    if row.holder_host != socket.gethostname():
        return False
    try:
        return bool(abs(psutil.Process(row.holder_pid).create_time() - row.holder_created) > 1.0)
    except psutil.NoSuchProcess:
        return True


def _describe(row: Row[Any]) -> str:
    since = datetime.fromtimestamp(row.held_since).astimezone().isoformat(timespec="seconds")
    return f"process {row.holder_pid} on {row.holder_host} since {since}"
