"""The services of docker-compose.yml as processes of this machine, since a container engine is not everywhere.

Commands, environments, health checks and the order of starts are read from that file; of the images, only what their
Dockerfile installs is taken from here. Names and ports are put in place of the containers'.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from postgres_support import Postgres
from services_support import REPOSITORY, Services, inherited, read_logins

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
PORTS = {"postgres": 5432, "mlflow": 5000, "prefect": 4200}
START_SECONDS = 600.0


class Stack:
    """The topology, which `up` starts.

    Args:
        folder: A new one, which every user of this machine may look into.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.extra: dict[str, dict[str, str]] = {}
        """Laid over the environment of a service, as an override file would."""
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.secrets = make_secrets(folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._answered: set[str] = set()
        self.postgres = Postgres(folder, self.ports["postgres"], self.secrets, SERVICES["postgres"]["environment"])
        settings = (REPOSITORY / "docker" / "basic_auth.ini").read_text()
        (folder / "basic_auth.ini").write_text(self._here("mlflow", settings))

    @property
    def mlflow_uri(self) -> str:
        return f"http://127.0.0.1:{self.ports['mlflow']}"

    @property
    def logins(self) -> dict[str, str]:
        """What a client of both servers has in its environment."""
        return read_logins(self.secrets)

    @property
    def home(self) -> Path:
        """The home of rl_training on the machine of the worker."""
        return self.folder / "worker"

    def client(self) -> Services:
        """A user's shell, with the two addresses in it and a home of its own."""
        home = self.folder / "user"
        home.mkdir(exist_ok=True)
        api_url = f"http://127.0.0.1:{self.ports['prefect']}/api"
        addresses = {"PREFECT_API_URL": api_url, "MLFLOW_TRACKING_URI": self.mlflow_uri} | self.logins
        homes = {"HOME": str(home), "RL_TRAINING_HOME": str(home / "rl"), "PREFECT_HOME": str(home / "prefect")}
        return Services(api_url, home, inherited() | homes | addresses | {"DO_NOT_TRACK": "1", "COLUMNS": "200"})

    def up(self) -> None:
        """Starts every service when those before it are as the file asks, and returns when all are well."""
        deadline = time.monotonic() + START_SECONDS
        while waiting := [name for name in SERVICES if not self.is_well(name)]:
            for name in waiting:
                wanted = SERVICES[name].get("depends_on", {})
                if name not in self.processes and all(self.is_well(before) for before in wanted):
                    self.start(name)
            assert time.monotonic() < deadline, f"{waiting} did not come up\n" + self.log(waiting[0])
            time.sleep(0.3)

    def is_well(self, name: str) -> bool:
        """Whether a service has passed its health check, has ended well, or runs and needs neither."""
        process, service = self.processes.get(name), SERVICES[name]
        if process is None:
            return False
        code = process.poll()
        if "restart" not in service:
            assert code in (None, 0), f"{name} ended with {code}\n" + self.log(name)
            return code == 0
        assert code is None, f"{name} ended with {code}\n" + self.log(name)
        if "healthcheck" in service and name not in self._answered and self._check(name):
            self._answered.add(name)
        return "healthcheck" not in service or name in self._answered

    def start(self, name: str) -> None:
        """Starts a service as its container would be started."""
        if name == "postgres":
            self.processes[name] = self.postgres.start()
            return
        command = [self._here(name, part) for part in SERVICES[name]["command"]]
        command = [str(REPOSITORY / "docker" / "with_password.sh"), *command]  # the entrypoint of the images
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["env", "--default-signal=INT", *command],
                env=self._environment(name),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> int:
        """Ends a service as `docker stop` does; returns its exit code, which is -9 where its time was over."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGINT if name == "postgres" else signal.SIGTERM)  # as its image says
        try:
            return process.wait(int(SERVICES[name].get("stop_grace_period", "10s").removesuffix("s")))
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def kill(self, name: str) -> list[psutil.Process]:
        """Ends a service and everything that it has started at once, as a power cut; returns what was ended."""
        process = self.processes.pop(name)
        family = family_of(process)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
        return family

    def down(self) -> None:
        """Ends everything, in the opposite order; the database last and in order."""
        for name in reversed([name for name, process in self.processes.items() if process.poll() is None]):
            if name == "postgres":
                self.stop(name)
            else:
                self.kill(name)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else "it was not started"

    def _check(self, name: str) -> bool:
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        command = [self._here(name, part) for part in command]
        if kind == "CMD-SHELL":
            command = ["sh", "-c", command[0].replace("$$", "$")]
        environment = inherited() | {"PGPORT": str(self.ports["postgres"])}
        environment["PATH"] = os.pathsep.join([str(REPOSITORY / "docker"), environment["PATH"]])
        return subprocess.run(command, env=environment, capture_output=True, timeout=90, check=False).returncode == 0

    def _environment(self, name: str) -> dict[str, str]:
        home = self._volume(name)
        home.mkdir(exist_ok=True)
        own = {key: self._here(name, value) for key, value in SERVICES[name]["environment"].items()}
        return inherited() | {"HOME": str(home), "COLUMNS": "200"} | own | self.extra.get(name, {})

    def _here(self, name: str, text: str) -> str:
        """Puts this machine's addresses and folders in the place of the containers'."""
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text)
        for server, port in PORTS.items():
            for host in (f"@{server}", f"http://{server}", "http://127.0.0.1"):
                text = text.replace(f"{host}:{port}", f"{host.replace(server, '127.0.0.1')}:{self.ports[server]}")
            text = text.replace(f"--port={port}", f"--port={self.ports[server]}")
        text = text.replace("0.0.0.0", "127.0.0.1").replace("/run/secrets", str(self.secrets))
        text = text.replace("/etc/mlflow/basic_auth.ini", str(self.folder / "basic_auth.ini"))
        return re.sub(r"(?<![\w.])/data\b", str(self._volume(name)), text)

    def _volume(self, name: str) -> Path:
        """Returns the folder that is `/data` in the container."""
        return self.folder / ("worker" if name == "bootstrap" else name)


@contextmanager
def stack() -> Iterator[Stack]:
    """Runs all services until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="rl-training-stack-"))  # pytest's own is closed to other users
    folder.chmod(0o755)
    services = Stack(folder)
    try:
        yield services
    finally:
        services.down()
        shutil.rmtree(folder, ignore_errors=True)


def make_secrets(folder: Path) -> Path:
    """Makes the passwords as `make secrets` does, in a folder of the test's."""
    script = folder / "make_secrets.sh"
    shutil.copy(REPOSITORY / "docker" / "make_secrets.sh", script)
    subprocess.run([script], check=True, capture_output=True)
    return folder / "secrets"


def free_ports(count: int) -> list[int]:
    with_ports = [socket.socket() for _ in range(count)]
    for each in with_ports:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and all that it has started, directly or not."""
    first = psutil.Process(process.pid)
    return [first, *first.children(recursive=True)]
