"""A real MLflow server for tests."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from waiting import wait_for


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A real `mlflow server` on a copy of the template store, that can be stopped and started again.

    Args:
        folder: Holds the copy, as `mlflow.db`.
        artifacts: Options that say where artifacts go; by default through the server, to the folder.
        environment: What only the server has in its environment.
    """

    def __init__(
        self, folder: Path, artifacts: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.artifacts = artifacts or ["--artifacts-destination", str(folder / "served")]
        self.environment = environment or {}
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db", "--workers", "1"]
        command += self.artifacts
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
                **self.environment,
            },
            start_new_session=True,
        )
        wait_for(self.answers)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
