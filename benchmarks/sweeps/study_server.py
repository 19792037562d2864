"""A PostgreSQL server on this machine, on loopback, for study databases; its connections can be cut."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

START_SECONDS = 120.0


class StudyServer:
    """A new cluster with a database; `stop` ends the server.

    Args:
        folder: A new folder, which every user of this machine may enter, because PostgreSQL refuses to run as root.

    Raises:
        RuntimeError: PostgreSQL is not installed or does not start.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.password, self._data = secrets.token_hex(16), folder / "data"
        self.uri = f"postgresql://postgres:{self.password}@127.0.0.1:{port}/postgres"
        self._make_cluster(folder / "password")
        self._log = folder / "postgres.log"
        command = [_find("postgres"), "-D", self._data, "-h", "127.0.0.1", "-k", self._data, "-p", str(port)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **_get_user())
        self._wait()

    def cut_connections(self) -> int:
        """Ends all connections to the database; returns their number."""
        import psycopg2

        statement = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        connection = psycopg2.connect(self.uri)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return int(cursor.fetchone()[0])
        finally:
            connection.close()

    def stop(self) -> None:
        """Ends the server."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _make_cluster(self, password: Path) -> None:
        self._data.mkdir(mode=0o700)
        password.touch(0o600)
        password.write_text(self.password)
        if user := _get_user():
            for path in (self._data, password):
                shutil.chown(path, user["user"])
        command = [_find("initdb"), f"--pgdata={self._data}", "--username=postgres", f"--pwfile={password}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"]
        made = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **_get_user())
        password.unlink()
        if made.returncode != 0:
            raise RuntimeError(f"initdb: {made.stdout}{made.stderr}")

    def _wait(self) -> None:
        import psycopg2

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg2.connect(self.uri).close()
                return
            except psycopg2.OperationalError as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(f"{error}{self._log.read_text()}") from error
                time.sleep(0.2)


def _find(name: str) -> str:
    """Returns one of PostgreSQL's programs, which Debian keeps off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, folders)]))
    if found is None:
        raise RuntimeError(f"PostgreSQL's {name} was not found; install it (Debian: apt-get install postgresql)")
    return found


def _get_user() -> dict[str, Any]:
    """Returns the options of a process that root starts as another user."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
