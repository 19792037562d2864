"""Opens the study database, and makes changes in it that survive a lost connection.

By default the database is an SQLite file in the home of rl_training. Drivers on several machines share a PostgreSQL
database, whose address `RL_TRAINING_STUDY_URI` has.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event, func, literal_column, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.sql.elements import ColumnElement

from rl_training.errors import RunFailed, UserError, one_line
from rl_training.security import owner_only_files
from rl_training.security.secrets import redact_text
from rl_training.sweeps.study.tables import METADATA
from rl_training.system.paths import SQLITE, home

logger = logging.getLogger(__name__)

T = TypeVar("T")

STUDY_VARIABLE = "RL_TRAINING_STUDY_URI"
"""The environment variable with the address of the study database."""

OPEN_SECONDS, RETRY_SECONDS = 30.0, 600.0
"""How long to try again if the database can't be reached: when it is opened, and when a sweep runs."""

BUSY_SECONDS = 60.0
"""How long a change of an SQLite file waits for that of another process."""


class StudyLost(RunFailed):
    """The study database can't be used, or could not be reached for a long time; the sweep can be continued."""


class Database:
    """The study database.

    Args:
        uri: The address; by default `$RL_TRAINING_STUDY_URI`, else a file in the home of rl_training.

    Raises:
        UserError: The database can't be opened.
    """

    def __init__(self, uri: str | None = None) -> None:
        self._url = _resolve(uri)
        self._engine = _make_engine(self._url)
        self._closed = threading.Event()
        try:
            self.change(_make_tables, seconds=OPEN_SECONDS)
        except StudyLost as error:
            self.close()
            is_file = self._url.get_backend_name() == "sqlite"
            advice = "move the file away to begin with an empty one" if is_file else "start the database"
            raise UserError(
                f"{error}; {advice}, or set {STUDY_VARIABLE} to one like postgresql://USER:PASSWORD@HOST/DATABASE"
            ) from None
        if self._url.get_backend_name() == "sqlite" and self._url.database:
            with suppress(OSError):
                owner_only_files.tighten(Path(self._url.database))

    @property
    def address(self) -> str:
        """The address of the database without the password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def now(self) -> ColumnElement[float]:
        """The database's clock in seconds since 1970, as an expression."""
        if self._url.get_backend_name() == "sqlite":
            return literal_column("(julianday('now') - 2440587.5) * 86400.0")
        return cast("ColumnElement[float]", func.extract("epoch", func.clock_timestamp()))

    def change(self, work: Callable[[Connection], T], *, seconds: float = RETRY_SECONDS) -> T:
        """Calls `work` in a transaction, again if the connection is lost.

        The connection may be lost when the transaction is already complete, so `work` must have the same effect if it
        is done twice.

        Args:
            work: Reads and writes through the connection that it gets.
            seconds: How long to try again.

        Raises:
            StudyLost: The database could not be reached for that time, or can't be used at all: its file is damaged
                or the disk full, for example.
        """
        deadline, pause = time.monotonic() + seconds, 0.1
        while True:
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except (DataError, IntegrityError):
                raise  # a fault of the statement, not of the database
            except DBAPIError as error:
                text, left = redact_text(one_line(error.orig)), deadline - time.monotonic()
                if not _is_passing(error) or pause >= left or self._closed.wait(pause):
                    raise StudyLost(f"the study database at {self.address} can't be used: {text}") from None
                if pause >= 1.0:
                    logger.warning("the study database at %s can't be used: %s; trying again", self.address, text)
                pause = min(2 * pause, 10.0)

    def close(self) -> None:
        """Closes the connections; a change that waits for the database ends with an error."""
        self._closed.set()
        self._engine.dispose()


def _resolve(uri: str | None) -> URL:
    text = uri or os.environ.get(STUDY_VARIABLE) or f"{SQLITE}{home() / 'studies.db'}"
    try:
        url = make_url(text)
    except ArgumentError:
        raise UserError(
            f"{STUDY_VARIABLE}: got {redact_text(text)!r}, expected an address such as sqlite:////absolute/path.db or "
            f"postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None
    # The driver of the extra `server`, which MLflow's server uses too; SQLAlchemy's default is another one.
    return url.set(drivername="postgresql+psycopg2") if url.drivername == "postgresql" else url


def _make_engine(url: URL) -> Engine:
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UserError(f"{STUDY_VARIABLE}: got a database of kind {backend}, expected sqlite or postgresql")
    options: dict[str, Any] = {"timeout": BUSY_SECONDS} if backend == "sqlite" else {"connect_timeout": 10}
    try:
        # The parameters of statements may hold settings, which belong into no message.
        engine = create_engine(url, connect_args=options, pool_pre_ping=True, hide_parameters=True)
    except (ModuleNotFoundError, NoSuchModuleError):
        raise UserError(
            f"the study database at {url.render_as_string(hide_password=True)} needs a driver: "
            f"pip install 'rl-training[server]'"
        ) from None
    if backend == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _make_tables(connection: Connection) -> None:
    """Makes the tables that are missing, and checks that the others have the columns of this version."""
    METADATA.create_all(connection)
    for table in METADATA.sorted_tables:
        connection.execute(select(table).limit(0))


def _set_up_sqlite(connection: Any, _: object) -> None:
    """Lets readers and a writer work at the same time; a committed change survives a power cut."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _is_passing(error: DBAPIError) -> bool:
    """Returns whether the same statement may work later: the connection, not the statement, is at fault."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    lasting = ("no such table", "no such column", "unable to open", "not a database", "readonly", "disk I/O", "is full")
    return isinstance(error, OperationalError) and not any(words in str(error.orig) for words in lasting)
