"""docker-compose.yml as Docker Compose reads it, without an engine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from services_support import REPOSITORY

pytestmark = pytest.mark.services


def config(*files: str, **environment: str) -> dict[str, Any]:
    """Returns the output of `docker compose config`, from Docker's plugin or Debian's docker-compose."""
    program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    options = [text for file in files for text in ("-f", file)]
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    command = [*program, *options, "config"]
    try:
        said = subprocess.run(
            command, cwd=REPOSITORY, env=path | environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.fail("Docker Compose not found; install it (Debian: apt-get install docker-compose)")
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    resolved: dict[str, Any] = yaml.safe_load(said.stdout)
    return resolved


def test_compose_takes_the_file_and_resolves_it():
    services = config()["services"]
    assert sorted(services) == ["bootstrap", "mlflow", "mlflow-upgrade", "postgres", "prefect", "worker"]
    assert services["worker"]["user"] == "10001:10001"
    assert services["worker"]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert services["worker"]["depends_on"] == {"bootstrap": {"condition": "service_completed_successfully"}}
    ports = [str(port) for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all("127.0.0.1" in port for port in ports)


def test_ports_and_memory_may_be_chosen():
    services = config(PREFECT_PORT="4300", MLFLOW_PORT="5100", WORKER_MEMORY="2g", WORKER_RUNS="2")["services"]
    assert "4300" in str(services["prefect"]["ports"])
    assert services["prefect"]["environment"]["PREFECT_SERVER_UI_API_URL"] == "http://127.0.0.1:4300/api"
    assert "5100" in str(services["mlflow"]["ports"])
    assert services["worker"]["mem_limit"] in ("2g", "2147483648")
    assert services["worker"]["command"][-1] == "--limit=2"
    assert services["worker"]["environment"]["PREFECT_UI_URL"] == "http://127.0.0.1:4300"


def test_the_gpu_is_the_workers():
    services = config("docker-compose.yml", "docker-compose.gpu.yml")["services"]
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert services["worker"]["command"][:2] == ["rl-training", "worker"]
    assert not [name for name in services if name != "worker" and "deploy" in services[name]]


def test_every_file_that_is_mounted_or_built_from_is_there():
    resolved = config()
    for service in resolved["services"].values():
        if "build" in service:
            assert (Path(service["build"]["context"]) / service["build"]["dockerfile"]).exists()
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            assert source in resolved["volumes"] or Path(source).exists(), volume
