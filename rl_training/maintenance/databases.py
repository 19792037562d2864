"""Dumps and loads the databases of the two servers: PostgreSQL by its own programs, SQLite by its own copy.

A password is never part of a command line: PostgreSQL's programs find it in `PGPASSWORD` or in `~/.pgpass`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from rl_training.errors import UserError
from rl_training.security.secrets import redact_text
from rl_training.system.durable_files import move_into_place, remove_leftovers, staging_path, sync_file

MLFLOW_DATABASE = "MLFLOW_BACKEND_STORE_URI"
PREFECT_DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""The servers' own environment variables."""

PROGRAM_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class Database:
    """The database of a server."""

    name: Literal["mlflow", "prefect"]
    url: URL

    @property
    def is_file(self) -> bool:
        """Whether it is an SQLite file."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def dump_name(self) -> str:
        """The name of its dump in a backup."""
        return f"{self.name}.{'sqlite' if self.is_file else 'pgdump'}"

    def __str__(self) -> str:
        """Returns its address without the password."""
        return self.url.render_as_string(hide_password=True)

    def dump(self, target: Path) -> None:
        """Writes a consistent copy of the database while its server runs.

        Raises:
            UserError: The database can't be read.
        """
        if not self.is_file:
            # Comments on extensions, and owners, could only be restored by the database's administrator.
            options = ["--format=custom", "--no-owner", "--no-privileges", "--no-comments", f"--file={target}"]
            self._run("pg_dump", options)
        else:
            self._copy_file(target)
        sync_file(target)

    def load(self, dump: Path) -> None:
        """Fills the empty database; if it fails, the database is still empty.

        Raises:
            UserError: The database can't be written.
        """
        if not self.is_file:
            options = ["--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error", str(dump)]
            self._run("pg_restore", options)
            return
        path = self._get_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, path.name)
        staged = staging_path(path)
        shutil.copyfile(dump, staged)
        sync_file(staged)
        move_into_place(staged, path)

    def require_empty(self) -> None:
        """Checks that nobody has used the database.

        Raises:
            UserError: It has tables, or it can't be reached.
        """
        if self._get_path().exists() if self.is_file else self.list_tables():
            raise UserError(
                f"{self} is not empty, expected a new database in which no server has started; a restore never "
                f"replaces anything, so make a new one, or drop and create this one if nobody needs it"
            )

    def list_tables(self) -> list[str]:
        """Returns the names of its tables.

        Raises:
            UserError: It can't be reached.
        """
        if self.is_file and not self._get_path().is_file():
            raise UserError(f"{self._get_path()} does not exist, expected the SQLite file of {self.name}")
        engine = create_engine(self.url if self.is_file else self.url.set(drivername="postgresql+psycopg2"))
        try:
            return inspect(engine).get_table_names()
        except SQLAlchemyError as error:
            raise UserError(f"{self} can't be reached: {redact_text(str(error.__cause__ or error))}") from None
        finally:
            engine.dispose()

    def _get_path(self) -> Path:
        return Path(self.url.database or "").absolute()

    def _copy_file(self, target: Path) -> None:
        path = self._get_path()
        if not path.is_file():
            raise UserError(f"{path} does not exist, expected the SQLite file of {self.name}")
        address = f"{path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)

    def _run(self, program: str, options: list[str]) -> None:
        found = shutil.which(program)
        if found is None:
            raise UserError(f"{program} was not found; install PostgreSQL's client programs of the server's version")
        url = self.url
        given = {"host": url.host, "port": url.port, "username": url.username, "dbname": url.database}
        connection = [f"--{key}={value}" for key, value in given.items() if value is not None]
        secret = {"PGPASSWORD": str(url.password)} if url.password is not None else {}
        done = subprocess.run(
            [found, "--no-password", *connection, *options],
            env={**os.environ, **secret},
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise UserError(f"{program} failed for {self}: {redact_text(done.stderr.strip())}")


def read_database(name: Literal["mlflow", "prefect"], variable: str) -> Database:
    """Returns the database that a server's own environment variable names.

    Raises:
        UserError: The variable is not set, or it names no SQLite file and no PostgreSQL database.
    """
    text = os.environ.get(variable)
    if not text:
        raise UserError(f"{variable} is not set, expected the address of {name}'s database, as its server has it")
    try:
        url = make_url(text)
    except ArgumentError:
        raise UserError(f"{variable} can't be read, expected an address such as postgresql://...") from None
    if url.get_backend_name() not in ("sqlite", "postgresql") or not url.database:
        raise UserError(
            f"{variable} is {url.render_as_string(hide_password=True)}, expected PostgreSQL or an SQLite file"
        )
    return Database(name, url)
