"""The services of docker-compose.yml, under the test's own project name, tags and ports."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

from commands import ROOT, eventually, run
from engine import Engine
from services_support import Services, inherited, read_logins

SERVERS = ("postgres", "mlflow", "prefect")
UP_SECONDS = 1800.0
"""How long the services may take to come up: a minute or two, and much more on a busy machine."""


class Stack:
    """A clone of this repository or a user's project, and its services in an engine.

    Args:
        engine: The engine.
        scratch: A folder for the clone and for a user's home.
        base_images: Build arguments, by name.
        clone: The name of the folder with the compose file.
    """

    def __init__(self, engine: Engine, scratch: Path, base_images: dict[str, str], clone: str = "clone") -> None:
        self.engine, self.scratch, self.base_images = engine, scratch, base_images
        self.clone = scratch / clone
        self.project = f"rl-training-test-{os.getpid()}-{clone}"
        names = ("MLFLOW_PORT", "PREFECT_PORT", "MLFLOW_TLS_PORT", "PREFECT_TLS_PORT")
        self.ports = dict(zip(names, map(str, _free_ports(len(names))), strict=True))
        self.commit = run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).strip()
        self.environment = {
            **engine.environment,
            **self.ports,
            **base_images,
            "COMPOSE_PROJECT_NAME": self.project,
            "IMAGE_TAG": self.project,
            "GIT_COMMIT": self.commit,
            "TLS_HOST": "localhost",
        }

    @property
    def mlflow_uri(self) -> str:
        """MLflow's address for a browser of this machine."""
        return f"http://127.0.0.1:{self.ports['MLFLOW_PORT']}"

    @property
    def prefect_uri(self) -> str:
        """Prefect's address for a browser of this machine."""
        return f"http://127.0.0.1:{self.ports['PREFECT_PORT']}"

    @property
    def logins(self) -> dict[str, str]:
        """What a client of both servers has in its environment."""
        return read_logins(self.clone / "docker" / "secrets")

    def compose(self, *arguments: str, check: bool = True, timeout: float = UP_SECONDS) -> str:
        """Runs `docker compose ARGUMENTS` in the clone."""
        command = ["docker", "compose", *arguments]
        return run(command, environment=self.environment, cwd=self.clone, check=check, timeout=timeout)

    def make_clone(self) -> None:
        """Copies the working tree, without what git ignores, as a clone made under `umask 077` would have it."""
        names = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0")
        for name in filter(None, names):
            source, target = ROOT / name, self.clone / name
            if not source.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o700 if os.access(source, os.X_OK) else 0o600)
        for folder in (self.clone, *(path for path in self.clone.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
        run(["sh", "-c", "umask 077; docker/make_secrets.sh"], cwd=self.clone)
        os.environ.update(self.logins)  # for clients of MLflow in this process

    def up(self, build: str = "--no-build") -> None:
        """Starts the services and returns when the servers answer and the worker runs."""
        if build == "--build":
            self.compose("-f", "docker-compose.yml", "-f", "docker-compose.tls.yml", "build", timeout=2 * UP_SECONDS)
        self.compose("up", "--detach", "--no-build", timeout=2 * UP_SECONDS)
        eventually(self.is_well, UP_SECONDS, f"all services are well; they are\n{self.compose('ps', '--all')}")

    def start(self, service: str) -> None:
        """Starts a container again that was killed or stopped, and returns when all services are well."""
        self.engine.docker("start", self.container(service))
        eventually(self.is_well, UP_SECONDS, f"all services are well; they are\n{self.compose('ps', '--all')}")

    def is_well(self) -> bool:
        """Whether the servers are healthy and the worker runs."""
        return all(self.state(name).get("Health", {}).get("Status") == "healthy" for name in SERVERS) and bool(
            self.state("worker").get("Running")
        )

    def state(self, service: str) -> dict[str, Any]:
        """Returns the engine's state of a service's container."""
        if not (container := self.container(service)):
            return {}
        state: dict[str, Any] = json.loads(self.engine.docker("inspect", "--format", "{{json .State}}", container))
        return state

    def container(self, service: str) -> str:
        """The id of a service's container; empty if there is none."""
        return self.compose("ps", "--all", "--quiet", service).strip()

    def inside(self, service: str, *command: str, check: bool = True) -> str:
        """Runs a command in a service's container."""
        return self.compose("exec", "-T", service, *command, check=check)

    def client(self) -> Services:
        """A user's shell on this machine, with the two addresses and a home of its own."""
        home = self.scratch / "user"
        home.mkdir(exist_ok=True)
        api_url = f"{self.prefect_uri}/api"
        own = {
            "HOME": str(home),
            "RL_TRAINING_HOME": str(home / "rl"),
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_API_URL": api_url,
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
            **self.logins,
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",
        }
        return Services(api_url, home, inherited() | own)

    def down(self) -> None:
        """Removes containers, networks and volumes."""
        if self.clone.exists():
            self.compose("down", "--volumes", "--remove-orphans", check=False)

    def left_over(self) -> list[str]:
        """Containers, volumes and networks of the project that are still there."""
        label = f"label=com.docker.compose.project={self.project}"
        asked = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return [line for what in asked for line in self.engine.docker(*what, "--quiet", "--filter", label).split()]

    def images(self) -> list[str]:
        """The tags of the test's images."""
        listed = self.engine.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
        return [line for line in listed.splitlines() if line.endswith(f":{self.project}")]

    def remove_images(self) -> None:
        """Removes the images that the test has built."""
        if images := self.images():
            self.engine.docker("image", "rm", "--force", *images, check=False)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
