"""docker-compose.yml, the images and the secrets: who can reach which service, its user and its secrets."""

from __future__ import annotations

import ast
import base64
import configparser
import re
import shutil
import stat
import subprocess
import sys
import threading
import tomllib
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
    unreachable_from_here = {"com.docker.network.bridge.inhibit_ipv4": "true"}
    assert COMPOSE["networks"] == {"database": {"internal": True, "driver_opts": unreachable_from_here}, "services": {}}
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
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) - stages
    assert bases == {"${PYTHON_IMAGE}", "${POSTGRES_IMAGE}"}
    defaults = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", DOCKERFILE, re.M))
    assert defaults == {"PYTHON_IMAGE": "python:3.11.14-slim-bookworm", "POSTGRES_IMAGE": "postgres:17.7-bookworm"}
    arguments = {name: f"${{{name}:-{default}}}" for name, default in (defaults | {"GIT_COMMIT": ""}).items()}
    assert COMPOSE["x-build"]["args"] == arguments
    installs = re.findall(r"pip install (.*)", DOCKERFILE)
    assert len(installs) == 4
    assert all(arguments.startswith("--constraint constraints.txt ") for arguments in installs)
    for final in ("server", "worker"):
        stage = DOCKERFILE.split(f" AS {final}\n")[1].split("FROM ")[0]
        assert "USER 10001:10001" in stage
        assert "RUN" not in stage
    started = " ".join(str(service.get("command", "")) for service in SERVICES.values())
    assert not re.search(r"\b(pip|apt|install)\b", started)


def test_one_service_builds_each_image_and_the_others_name_it():
    images = {"postgres": "postgres"} | dict.fromkeys(("mlflow-upgrade", "mlflow", "prefect"), "server")
    images |= dict.fromkeys(("bootstrap", "worker"), "worker")
    assert {name: service["image"] for name, service in SERVICES.items()} == {
        name: f"rl-training-{image}:${{IMAGE_TAG:-{__version__}}}" for name, image in images.items()
    }
    built = {name: service["build"]["target"] for name, service in SERVICES.items() if "build" in service}
    assert built == {"postgres": "database", "mlflow": "server", "worker": "worker"}
    assert {service["pull_policy"] for service in SERVICES.values()} == {"never"}


def test_files_reach_containers_whatever_the_umask_of_the_clone_is():
    """Bind mounts would keep the modes of the clone; copies in an image get modes of their own."""
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {mount.split(":")[0] for mount in mounts} == set(COMPOSE["volumes"])
    finals = [DOCKERFILE.split(f" AS {final}\n")[1].split("FROM ")[0] for final in ("database", "server", "worker")]
    copies = [line for stage in finals for line in stage.splitlines() if line.startswith("COPY")]
    assert len(copies) == 7
    assert all(
        line.startswith(("COPY --chmod=755 docker/", "COPY --chmod=644 docker/", "COPY --from=install-"))
        for line in copies
    )


def test_what_seldom_changes_is_installed_before_the_sources_are_copied():
    stage = DOCKERFILE.split(" AS install-worker\n")[1].split("FROM ")[0]
    steps = re.findall(r"^(?:COPY .*|RUN pip .*|RUN python .*)$", stage, re.M)
    assert [step.split("&&")[0].strip() for step in steps] == [
        "RUN pip install --constraint constraints.txt torch",
        "COPY pyproject.toml docker/requirements.py ./",
        "RUN python requirements.py box2d mujoco atari optuna >requirements.txt \\",
        "COPY . .",
        "RUN pip install --constraint constraints.txt --no-deps .",
    ]


def test_a_worker_has_what_its_deployments_need():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    configs = {deployment.get("parameters", {}).get("config", "") for deployment in deployments}
    assert {"dqn/pong", "ppo/pong", "ppo/lunar_lander", "ppo/half_cheetah"} <= configs
    command = [sys.executable, str(ROOT / "docker" / "requirements.py"), "box2d", "mujoco", "atari"]
    wanted = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(wanted) >= set(project["dependencies"]) | {"ale-py>=0.12", "gymnasium[box2d]>=1.4,<2"}


def test_a_worker_can_film_mujoco_without_a_display():
    stage = DOCKERFILE.split(" AS rendering\n")[1].split("FROM ")[0]
    assert "libosmesa6" in stage
    assert "FROM rendering AS worker\n" in DOCKERFILE


def test_images_say_from_which_commit_they_are():
    label, variable = "org.opencontainers.image.revision=$GIT_COMMIT", "RL_TRAINING_GIT_COMMIT=$GIT_COMMIT"
    assert DOCKERFILE.count(f"LABEL {label}") == 4
    assert DOCKERFILE.count(f"ENV {variable}") == 1
    sent = (ROOT / "Makefile").read_text()
    assert "GIT_COMMIT=" in sent


def test_passwords_come_from_files_that_are_in_no_repository_and_no_image():
    names = ["postgres_password", "mlflow_db_password", "prefect_db_password"]
    names += ["mlflow_password", "mlflow_session_key", "prefect_login"]
    assert COMPOSE["secrets"] == {name: {"file": f"docker/secrets/{name}"} for name in names}
    ignored = subprocess.run(["git", "check-ignore", "-q", "docker/secrets/postgres_password"], cwd=ROOT, check=False)
    assert ignored.returncode == 0
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in sent
    assert not [line for line in sent if line.startswith(("!docker/secrets", "!.git", "!.venv", "!*"))]
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if key == "MLFLOW_AUTH_CONFIG_PATH":
                continue
            assert not re.search("PASSWORD|SECRET|TOKEN|KEY|AUTH", key) or value.startswith("/run/secrets/"), key
    text = "".join((ROOT / name).read_text() for name in ("docker-compose.yml", "docker-compose.gpu.yml"))
    users = re.findall(r"//(\S+)@", text)
    assert sorted(users) == ["mlflow", "mlflow", "prefect"]  # no colon, no password
    assert {name: service["secrets"] for name, service in SERVICES.items() if "secrets" in service} == {
        "postgres": names[:3],
        "mlflow-upgrade": ["mlflow_db_password"],
        "mlflow": ["mlflow_db_password", "mlflow_password", "mlflow_session_key"],
        "prefect": ["prefect_db_password", "prefect_login"],
        "bootstrap": ["mlflow_password", "prefect_login"],
        "worker": ["mlflow_password", "prefect_login"],
    }


def test_mlflow_upgrades_first_proxies_artifacts_runs_no_jobs_and_knows_its_names():
    command, environment = SERVICES["mlflow"]["command"], SERVICES["mlflow"]["environment"]
    assert SERVICES["mlflow-upgrade"]["command"][:3] == ["mlflow", "db", "upgrade"]
    assert f"--backend-store-uri={SERVICES['mlflow-upgrade']['command'][3]}" in command
    assert environment["MLFLOW_ARTIFACTS_DESTINATION"] == "${MLFLOW_ARTIFACTS:-/data/artifacts}"
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
    assert tests["mlflow"][:5] == [*asks, mlflow, "mlflow:5000", '{"max_results": 1}']
    assert tests["mlflow"][5:] == ["/run/secrets/mlflow_password", "owner"]
    assert tests["prefect"][:5] == [*asks, "http://127.0.0.1:4200/api/flows/count", "prefect:4200", "{}"]
    assert tests["prefect"][5:] == ["/run/secrets/prefect_login"]
    for name in ("bootstrap", "worker"):
        environment = SERVICES[name]["environment"]
        assert environment["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
        assert environment["PREFECT_API_URL"] == "http://prefect:4200/api"
        assert environment["RL_TRAINING_MLFLOW_UI"] == "http://127.0.0.1:${MLFLOW_PORT:-5000}"
        assert environment["PREFECT_UI_URL"] == "http://127.0.0.1:${PREFECT_PORT:-4200}"


def test_both_servers_ask_for_a_login_and_clients_have_one():
    mlflow, prefect = SERVICES["mlflow"], SERVICES["prefect"]
    assert "--app-name=basic-auth" in mlflow["command"]
    assert mlflow["environment"]["MLFLOW_AUTH_ADMIN_PASSWORD_FILE"] == "/run/secrets/mlflow_password"
    assert mlflow["environment"]["MLFLOW_FLASK_SERVER_SECRET_KEY_FILE"] == "/run/secrets/mlflow_session_key"
    assert prefect["environment"]["PREFECT_SERVER_API_AUTH_STRING_FILE"] == "/run/secrets/prefect_login"
    settings = configparser.ConfigParser()
    settings.read(ROOT / "docker" / "basic_auth.ini")
    (store,) = [part for part in mlflow["command"] if part.startswith("--backend-store-uri=")]
    assert settings["mlflow"]["database_uri"] == store.removeprefix("--backend-store-uri=")
    for name in ("bootstrap", "worker"):
        environment = SERVICES[name]["environment"]
        assert environment["MLFLOW_TRACKING_USERNAME"] == settings["mlflow"]["admin_username"]
        assert environment["MLFLOW_TRACKING_PASSWORD_FILE"] == "/run/secrets/mlflow_password"
        assert environment["PREFECT_API_AUTH_STRING_FILE"] == "/run/secrets/prefect_login"


def test_an_entrypoint_takes_passwords_from_files(tmp_path):
    (tmp_path / "one").write_text("a $b 'c' \\d")
    command = [ROOT / "docker" / "with_password.sh", sys.executable, "-c", "import os; print(dict(os.environ))"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PREFECT_API_AUTH_STRING_FILE": str(tmp_path / "one"),
        "PGPASSWORD_FILE": "",
    }
    said = subprocess.check_output(command, env=environment, text=True)
    seen = ast.literal_eval(said)
    assert seen["PREFECT_API_AUTH_STRING"] == "a $b 'c' \\d"
    assert "PGPASSWORD" not in seen
    environment["PGPASSWORD_FILE"] = str(tmp_path / "none")
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode != 0


def test_https_is_had_by_naming_a_file():
    tls = yaml.safe_load((ROOT / "docker-compose.tls.yml").read_text())
    proxy = tls["services"]["proxy"]
    assert proxy["ports"] == [
        "${TLS_ADDRESS:-127.0.0.1}:${MLFLOW_TLS_PORT:-5443}:5443",
        "${TLS_ADDRESS:-127.0.0.1}:${PREFECT_TLS_PORT:-4443}:4443",
    ]
    same = ("init", "cap_drop", "security_opt", "logging", "user", "pull_policy", "networks", "restart")
    assert {key: proxy[key] for key in same} == {key: SERVICES["worker"][key] for key in same}
    assert {key: COMPOSE["x-build"]["args"][key] for key in proxy["build"]["args"]} == proxy["build"]["args"]
    assert proxy["secrets"] == list(tls["secrets"]) == ["tls_certificate", "tls_key"]
    assert proxy["networks"] == ["services"]
    ports = re.findall(r"listen (\d+) ssl;", (ROOT / "docker" / "nginx.conf").read_text())
    assert [port.rpartition(":")[2] for port in proxy["ports"]] == ports


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("10.1.2.3", "IP Address:10.1.2.3"),
        ("trainer.example.org", "DNS:trainer.example.org"),
        ("::1", "IP Address:0:0"),
    ],
)
def test_a_certificate_is_made_once_and_names_the_host(tmp_path, host, kind):
    script = tmp_path / "make_certificate.sh"
    shutil.copy(ROOT / "docker" / "make_certificate.sh", script)
    subprocess.run([script, host], check=True, capture_output=True)
    made = tmp_path / "secrets" / "tls_certificate"
    shown = subprocess.check_output(["openssl", "x509", "-in", made, "-noout", "-ext", "subjectAltName"], text=True)
    assert kind in shown
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    before = made.read_bytes()
    assert b"kept" in subprocess.check_output([script, host])
    assert made.read_bytes() == before


def test_a_check_has_time_on_a_busy_machine():
    room = {"interval": "10s", "timeout": "60s", "retries": 10, "start_period": "600s"}
    checks = {name: dict(service["healthcheck"]) for name, service in SERVICES.items() if "healthcheck" in service}
    assert set(checks) == set(SERVERS)
    for check in checks.values():
        check.pop("test")
        assert check == room


class Choosy(BaseHTTPRequestHandler):
    """Answers under one name alone, as MLflow does."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.headers["Host"] == "mlflow:5000" and body == b"{}" and self.path == "/there"
        known = known and self.headers["Authorization"] == f"Basic {base64.b64encode(b'owner:secret').decode()}"
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
    ("host", "body", "login", "code", "said"),
    [
        ("mlflow:5000", "{}", ["secret", "owner"], 0, ""),
        ("mlflow:5000", "{}", ["owner:secret"], 0, ""),
        ("mlflow:5000", "{}", ["other", "owner"], 1, "HTTP Error 403"),
        ("other:5000", "{}", ["secret", "owner"], 1, "HTTP Error 403"),
        ("mlflow:5000", "[]", ["secret", "owner"], 1, "HTTP Error 403"),
    ],
)
def test_the_health_check_asks_under_the_servers_name(choosy, tmp_path, host, body, login, code, said):
    file, user = tmp_path / "password", login[1:]
    file.write_text(login[0])
    command = [sys.executable, str(ROOT / "docker" / "answers.py"), choosy, host, body, str(file), *user]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, env={"http_proxy": "http://nowhere:1"})
    assert asked.returncode == code
    assert said in asked.stderr
    assert "Traceback" not in asked.stderr


def test_a_server_that_is_down_is_not_healthy(tmp_path):
    (tmp_path / "login").write_text("owner:secret")
    address = ["http://127.0.0.1:9/", "mlflow:5000", "{}", str(tmp_path / "login")]
    command = [sys.executable, str(ROOT / "docker" / "answers.py"), *address]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_a_stop_gives_training_time_to_save():
    worker = SERVICES["worker"]
    assert worker["command"] == ["rl-training", "worker", "--limit=${WORKER_RUNS:-4}"]
    assert worker["stop_grace_period"] == "120s"
    assert worker["shm_size"] == "1gb"
    assert worker["mem_limit"] == "${WORKER_MEMORY:-8g}"
    assert worker["container_name"] == "${COMPOSE_PROJECT_NAME:-rl-training}-worker"  # and with that, one
    assert {name: SERVICES[name]["stop_grace_period"] for name in SERVERS} == dict.fromkeys(SERVERS, "60s")
    assert "--uvicorn-opts=--timeout-graceful-shutdown 50" in SERVICES["mlflow"]["command"]


def test_a_gpu_is_had_by_naming_a_file():
    files = subprocess.check_output(["git", "ls-files", "*compose*"], cwd=ROOT, text=True).split()
    assert [name for name in files if name.endswith((".yml", ".yaml"))] == [
        "docker-compose.gpu.yml",
        "docker-compose.tls.yml",
        "docker-compose.yml",
    ]
    gpu = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
    devices = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert gpu == {"services": {"worker": {"deploy": {"resources": {"reservations": {"devices": devices}}}}}}


def test_secrets_are_made_once(tmp_path):
    script = tmp_path / "make_secrets.sh"
    shutil.copy(ROOT / "docker" / "make_secrets.sh", script)

    def make() -> dict[str, str]:
        subprocess.run(["sh", "-c", f"umask 077; {script}"], check=True, capture_output=True)
        return {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}

    made = make()
    assert sorted(made) == sorted(COMPOSE["secrets"])
    made["prefect_login"] = made["prefect_login"].removeprefix("owner:")
    assert all(re.fullmatch("[0-9a-f]{64}", password) for password in made.values())
    assert len(set(made.values())) == len(made) == 6
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "secrets").iterdir()} == {0o444}
    (tmp_path / "secrets" / "mlflow_db_password").unlink()
    again = make()
    made["prefect_login"] = f"owner:{made['prefect_login']}"
    assert {name for name in made if again[name] != made[name]} == {"mlflow_db_password"}
