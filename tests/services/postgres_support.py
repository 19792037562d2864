"""A PostgreSQL server on this machine, set up like the container of docker-compose.yml."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

from services_support import REPOSITORY, eventually, inherited, listens

DATABASES = ("mlflow", "prefect")


def programs() -> dict[str, str]:
    """PostgreSQL's programs, which Debian keeps off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ["PATH"], *map(str, folders)])
    found = {name: shutil.which(name, path=path) for name in ("initdb", "postgres", "psql")}
    missing = [name for name, program in found.items() if program is None]
    assert not missing, f"PostgreSQL's {', '.join(missing)} not found; install it (Debian: apt-get install postgresql)"
    return {name: str(program) for name, program in found.items()}


class Postgres:
    """A new cluster on a free port, and its databases.

    Args:
        folder: A new one, which every user of this machine may look into: PostgreSQL refuses to run as root.
        port: Free.
        secrets: The folder of the passwords.
        settings: The environment of the service `postgres`.
    """

    def __init__(self, folder: Path, port: int, secrets: Path, settings: dict[str, str]) -> None:
        self.folder, self.port, self.secrets, self.settings = folder, port, secrets, settings
        self._programs = programs()

    def start(self) -> subprocess.Popen[bytes]:
        """Does what the entrypoint of the official image does: a new cluster, the server, then the init script."""
        data, log = self.folder / "postgres", self.folder / "postgres.log"
        self._make_cluster(data)
        command = [self._programs["postgres"], "-D", data, "-h", "127.0.0.1", "-k", data, "-p", str(self.port)]
        with log.open("wb") as file:
            server = subprocess.Popen(
                command, stdout=file, stderr=file, env=inherited(), start_new_session=True, **_user()
            )
        assert eventually(lambda: listens(self.port), 180), log.read_text()
        environment = self._client("postgres_password")
        environment |= {"POSTGRES_USER": self.settings["POSTGRES_USER"], "SECRETS": str(self.secrets)}
        script = REPOSITORY / "docker" / "postgres" / "init.sh"
        done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return server

    def query(self, role: str, database: str, statement: str) -> subprocess.CompletedProcess[str]:
        """Asks as one of the two servers would."""
        command = [self._programs["psql"], "--no-psqlrc", "--tuples-only", "--no-align", f"--username={role}"]
        command += [f"--dbname={database}", f"--command={statement}"]
        environment = self._client(f"{role}_db_password")
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def dump(self, database: str) -> str:
        """Returns everything that a database holds, as text."""
        command = [shutil.which("pg_dump") or "pg_dump", f"--username={database}", f"--dbname={database}"]
        environment = self._client(f"{database}_db_password")
        return subprocess.check_output(command, env=environment, text=True)

    def _make_cluster(self, data: Path) -> None:
        data.mkdir(mode=0o700)
        password = self.folder / "pwfile"
        shutil.copy(self.secrets / "postgres_password", password)
        if user := _user():
            shutil.chown(data, user["user"])
        command = [self._programs["initdb"], *self.settings["POSTGRES_INITDB_ARGS"].split(), f"--pgdata={data}"]
        command += [f"--username={self.settings['POSTGRES_USER']}", f"--pwfile={password}", "--encoding=UTF8"]
        made = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, **user)
        assert made.returncode == 0, made.stdout + made.stderr
        password.unlink()

    def _client(self, secret: str) -> dict[str, str]:
        password = (self.secrets / secret).read_text()
        return inherited() | {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGPASSWORD": password}


def _user() -> dict[str, Any]:
    """For a process that root starts: another user."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
