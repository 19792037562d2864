"""docker-compose.yml, the images and the secrets: who is reached from where, as whom, and with what."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training import __version__

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
SERVERS = ("postgres", "mlflow", "prefect")


def test_the_topology():
    assert list(SERVICES) == ["postgres", "mlflow-upgrade", "mlflow", "prefect", "bootstrap", "worker"]
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    healthy, done = {"condition": "service_healthy"}, {"condition": "service_completed_successfully"}
    assert waits == {
        "postgres": {},
        "mlflow-upgrade": {"postgres": healthy},
        "mlflow": {"mlflow-upgrade": done},
        "prefect": {"postgres": healthy},
        "bootstrap": {"mlflow": healthy, "prefect": healthy},
        "worker": {"bootstrap": done},
    }
    assert [name for name in SERVICES if "restart" not in SERVICES[name]] == ["mlflow-upgrade", "bootstrap"]


def test_two_servers_are_published_and_on_the_loopback_address_alone():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "mlflow": ["127.0.0.1:${MLFLOW_PORT:-5000}:5000"],
        "prefect": ["127.0.0.1:${PREFECT_PORT:-4200}:4200"],
    }
    assert not [name for name, service in SERVICES.items() if "network_mode" in service]


def test_the_database_is_seen_by_its_servers_alone():
    assert COMPOSE["networks"] == {"database": {"internal": True}, "services": {}}
    assert {name for name, service in SERVICES.items() if "database" in service["networks"]} == {
        "postgres",
        "mlflow-upgrade",
        "mlflow",
        "prefect",
    }
    assert SERVICES["postgres"]["networks"] == ["database"]


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_runs_as_root_or_may_become_it(name):
    service = SERVICES[name]
    assert service["user"] == ("postgres" if name == "postgres" else "10001:10001")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert "privileged" not in service


def test_images_are_pinned_and_nothing_is_installed_at_start():
    assert SERVICES["postgres"]["image"] == "postgres:17.7-bookworm"
    own = {name: service["image"] for name, service in SERVICES.items() if "build" in service}
    servers = dict.fromkeys(("mlflow-upgrade", "mlflow", "prefect"), f"rl-training-server:{__version__}")
    assert own == servers | dict.fromkeys(("bootstrap", "worker"), f"rl-training-worker:{__version__}")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) - stages
    assert bases == {"python:3.11.14-slim-bookworm"}
    installs = re.findall(r"pip install (.*)", DOCKERFILE)
    assert len(installs) == 3
    assert all(arguments.startswith("--constraint constraints.txt ") for arguments in installs)
    for final in ("server", "worker"):
        stage = DOCKERFILE.split(f" AS {final}\n")[1].split("FROM ")[0]
        assert "USER 10001:10001" in stage
        assert "RUN" not in stage
    started = " ".join(str(service.get("command", "")) for service in SERVICES.values())
    assert not re.search(r"\b(pip|apt|install)\b", started)


def test_passwords_come_from_files_that_are_in_no_repository_and_no_image():
    names = ["postgres_password", "mlflow_db_password", "prefect_db_password"]
    assert COMPOSE["secrets"] == {name: {"file": f"docker/secrets/{name}"} for name in names}
    ignored = subprocess.run(["git", "check-ignore", "-q", "docker/secrets/postgres_password"], cwd=ROOT, check=False)
    assert ignored.returncode == 0
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in sent
    assert not [line for line in sent if line.startswith(("!docker/secrets", "!.git", "!.venv", "!*"))]
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|TOKEN|KEY|AUTH", key) or value.startswith("/run/secrets/"), key
    text = "".join((ROOT / name).read_text() for name in ("docker-compose.yml", "docker-compose.gpu.yml"))
    users = re.findall(r"//(\S+)@", text)
    assert sorted(users) == ["mlflow", "mlflow", "prefect"]  # no colon, no password
    assert {name: service["secrets"] for name, service in SERVICES.items() if "secrets" in service} == {
        "postgres": names,
        "mlflow-upgrade": ["mlflow_db_password"],
        "mlflow": ["mlflow_db_password"],
        "prefect": ["prefect_db_password"],
    }


def test_mlflow_upgrades_first_proxies_artifacts_runs_no_jobs_and_knows_its_names():
    command, environment = SERVICES["mlflow"]["command"], SERVICES["mlflow"]["environment"]
    assert SERVICES["mlflow-upgrade"]["command"][:3] == ["mlflow", "db", "upgrade"]
    assert f"--backend-store-uri={SERVICES['mlflow-upgrade']['command'][3]}" in command
    assert "--artifacts-destination=/data/artifacts" in command
    assert "--workers=1" in command
    assert SERVICES["mlflow"]["volumes"] == ["mlflow:/data"]
    assert "--allowed-hosts=mlflow:5000,localhost:*,127.0.0.1:*" in command
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    prefect = SERVICES["prefect"]["environment"]
    assert prefect["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert "*" not in prefect["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]


def test_health_is_what_a_client_gets():
    tests = {name: SERVICES[name]["healthcheck"]["test"] for name in SERVERS}
    assert tests["postgres"][0] == "CMD-SHELL"
    assert "psql --quiet --host=127.0.0.1" in tests["postgres"][1]
    asks = ["CMD", "answers.py"]
    mlflow = "http://127.0.0.1:5000/api/2.0/mlflow/experiments/search"
    assert tests["mlflow"] == [*asks, mlflow, "mlflow:5000", '{"max_results": 1}']
    assert tests["prefect"] == [*asks, "http://127.0.0.1:4200/api/flows/count", "prefect:4200", "{}"]
    for name in ("bootstrap", "worker"):
        environment = SERVICES[name]["environment"]
        assert environment["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
        assert environment["PREFECT_API_URL"] == "http://prefect:4200/api"
        assert environment["RL_TRAINING_MLFLOW_UI"] == "http://127.0.0.1:${MLFLOW_PORT:-5000}"


class Choosy(BaseHTTPRequestHandler):
    """Answers under one name alone, as MLflow does."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.headers["Host"] == "mlflow:5000" and body == b"{}" and self.path == "/there"
        self.send_response(200 if known else 403)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def choosy() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Choosy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/there"
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "body", "code", "said"),
    [
        ("mlflow:5000", "{}", 0, ""),
        ("other:5000", "{}", 1, "HTTP Error 403"),
        ("mlflow:5000", "[]", 1, "HTTP Error 403"),
    ],
)
def test_the_health_check_asks_under_the_servers_name(choosy, host, body, code, said):
    command = [sys.executable, str(ROOT / "docker" / "answers.py"), choosy, host, body]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, env={"http_proxy": "http://nowhere:1"})
    assert asked.returncode == code
    assert said in asked.stderr
    assert "Traceback" not in asked.stderr


def test_a_server_that_is_down_is_not_healthy():
    command = [sys.executable, str(ROOT / "docker" / "answers.py"), "http://127.0.0.1:9/", "mlflow:5000", "{}"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_a_stop_gives_training_time_to_save():
    worker = SERVICES["worker"]
    assert worker["command"] == ["rl-training", "worker"]
    assert worker["stop_grace_period"] == "120s"
    assert worker["shm_size"] == "1gb"
    assert worker["mem_limit"] == "${WORKER_MEMORY:-8g}"
    assert worker["container_name"] == "rl-training-worker"  # and with that, one


def test_a_gpu_is_had_by_naming_a_file():
    files = subprocess.check_output(["git", "ls-files", "*compose*"], cwd=ROOT, text=True).split()
    assert [name for name in files if name.endswith((".yml", ".yaml"))] == [
        "docker-compose.gpu.yml",
        "docker-compose.yml",
    ]
    gpu = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
    devices = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert gpu == {"services": {"worker": {"deploy": {"resources": {"reservations": {"devices": devices}}}}}}


def test_secrets_are_made_once(tmp_path):
    script = tmp_path / "make_secrets.sh"
    shutil.copy(ROOT / "docker" / "make_secrets.sh", script)

    def make() -> dict[str, str]:
        subprocess.run([script], check=True, capture_output=True)
        return {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}

    made = make()
    assert sorted(made) == sorted(COMPOSE["secrets"])
    assert all(re.fullmatch("[0-9a-f]{64}", password) for password in made.values())
    assert len(set(made.values())) == 3
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "secrets").iterdir()} == {0o444}
    (tmp_path / "secrets" / "mlflow_db_password").unlink()
    again = make()
    assert {name for name in made if again[name] != made[name]} == {"mlflow_db_password"}
