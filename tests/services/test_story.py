"""A team's work with the services of docker-compose.yml, by the commands that a user types."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from services_support import BIN, Services, eventually, mlflow_run, processes_of
from stack_support import Stack, family_of, free_ports, stack

pytestmark = pytest.mark.services

FILE_SECRET, BLOCK_SECRET = "CASE-SECRET-FILE-0001", "CASE-SECRET-BLOCK-0003"

PATIENCE = 600.0
"""Seconds to wait for what takes ten seconds on an idle machine."""

MODEL = "story"
GATE = {"model": MODEL, "floor": 0.0, "episodes": 20}
BEGINNER: dict[str, Any] = {
    "total_timesteps": 256,
    "evaluation": {"every": 256, "episodes": 3, "final_episodes": 5},
    "promotion": GATE,
    "experiment": "deployed",
}
"""A policy for CartPole that is no good yet."""
LEARNER = {**BEGINNER, "total_timesteps": 6_000, "evaluation": {"every": 3_000, "episodes": 3, "final_episodes": 5}}
LONG = f"""
algo: ppo
env_id: case_envs:NeedsTokenSlowWhile-v0
env_kwargs: {{api_token: {FILE_SECRET}, path: SLOW}}
num_envs: 2
rollout_steps: 50
batch_size: 50
total_timesteps: 4_000
checkpoint: {{every: 250, keep_last: 20}}
evaluation: {{every: 2_000, episodes: 2, final_episodes: 5}}
promotion: {{enabled: false}}
experiment: deployed
"""
"""Two minutes of training while there is a file at SLOW, and then seconds, with a secret in plain words."""
WITH_SIMULATORS = {
    "env_id": "case_envs:SpawnsChildSlowWhile-v0",
    "num_envs": 4,
    "vectorization": "async",
    "rollout_steps": 25,
    "batch_size": 100,
    "total_timesteps": 3_000,
    "checkpoint": {"every": 3_000},
    "evaluation": {"every": 3_000, "episodes": 1, "final_episodes": 1},
    "promotion": {"enabled": False},
    "experiment": "deployed",
}


@pytest.fixture(scope="module")
def services() -> Iterator[Stack]:
    with stack() as services:
        password = services.logins["MLFLOW_TRACKING_PASSWORD"]
        services.extra["worker"] = {
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "MLFLOW_TRACKING_URI": services.mlflow_uri.replace("//", f"//owner:{password}@"),
            "MLFLOW_TRACKING_PASSWORD_FILE": "",
        }
        services.up()
        yield services


@pytest.fixture(scope="module")
def user(services: Stack) -> Services:
    return services.client()


@pytest.fixture(scope="module")
def registry(services: Stack) -> Iterator[Any]:
    from rl_training.tracking.mlflow_store import connect

    with pytest.MonkeyPatch.context() as patch:
        for name, value in services.logins.items():
            patch.setenv(name, value)
        yield connect(services.mlflow_uri)


@pytest.fixture(scope="module")
def trained(user: Services) -> dict[str, Any]:
    """The flow run of the first champion."""
    return user.run("train-flow/default", overrides=BEGINNER)


@pytest.fixture(scope="module")
def retrained(user: Services, trained: dict[str, Any]) -> dict[str, Any]:
    """The flow run of the second one."""
    return user.run("retrain-flow/default", config="ppo/cartpole", overrides=LEARNER)


class LongRun:
    """A flow run, through all its attempts."""

    def __init__(self, services: Stack, user: Services, registry: Any, **parameters: Any) -> None:
        self.services, self.user, self.registry = services, user, registry
        self.id = user.begin("train-flow/default", **parameters)
        self.killed_at = datetime.now(UTC)

    def trains(self, steps: int) -> Path:
        """Waits until it has a checkpoint of at least so many steps; returns the run's directory."""

        def there() -> list[Path]:
            found = (self.services.home / "runs").glob("*/tracking.json")
            return [path.parent for path in found if self.id in path.read_text() and newest(path.parent) >= steps]

        found = eventually(there, PATIENCE)
        assert found, f"{self.user.state(self.id)}\n{self.services.log('worker')}"
        return Path(found[0])

    def comes_to(self, *states: str, seconds: float = PATIENCE) -> str:
        arrived = eventually(lambda: self.user.state(self.id) in states, seconds)
        assert arrived, f"{self.user.state(self.id)}\n{self.services.log('worker')}"
        return self.user.state(self.id)

    def retry(self) -> None:
        done = self.user.prefect("flow-run", "retry", self.id)
        assert done.returncode == 0, done.stdout + done.stderr

    def mlflow(self) -> Any:
        return mlflow_run(self.registry, {"id": self.id})

    def mlflow_with_the_rest(self) -> Any:
        """Its run in MLflow, once what a busy machine did not send in time is there, too."""
        run_dir = self.trains(0)
        assert eventually(lambda: not processes_of(run_dir), PATIENCE)
        self.user.rl_training("sync", str(run_dir))
        return self.mlflow()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, the steps of the long run's environment take their time."""
    path = tmp_path_factory.mktemp("slow") / "slow"
    path.touch()
    return path


@pytest.fixture(scope="module")
def stopped(
    services: Stack, user: Services, registry: Any, slow: Path
) -> tuple[LongRun, int, float, list[psutil.Process]]:
    """A run whose worker was told to stop while it trained; the exit code, the seconds, and the processes before."""
    config = slow.with_name("long.yaml")
    config.write_text(LONG.replace("SLOW", str(slow)))
    run = LongRun(services, user, registry, config=str(config))
    run.trains(500)
    family, told = family_of(services.processes["worker"]), time.monotonic()
    return run, services.stop("worker"), time.monotonic() - told, family


@pytest.fixture(scope="module")
def killed(services: Stack, stopped: tuple[LongRun, Any, Any, Any]) -> LongRun:
    """The same run, retried at a second worker, which is killed with it; a third worker is there now."""
    run = stopped[0]
    stopped_at = newest(run.trains(0))
    services.start("worker")
    run.retry()
    run.trains(stopped_at + 500)
    services.kill("worker")
    run.killed_at = datetime.now(UTC)
    services.start("worker")
    return run


def newest(run_dir: Path) -> int:
    names = [path.parent.name for path in run_dir.glob("checkpoints/step_*/manifest.json")]
    return max((int(name.removeprefix("step_")) for name in names), default=-1)


def champion(registry: Any) -> tuple[str, str]:
    """The champion's version, and the run that it is from."""
    version = registry.get_model_version_by_alias(MODEL, "champion")
    return str(version.version), version.run_id


def test_the_services_are_as_the_file_says(services: Stack, user: Services) -> None:
    assert "work pool rl-training: created" in services.log("bootstrap")
    done = user.rl_training("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    everything = [member for process in services.processes.values() if process.poll() is None
                  for member in family_of(process)]  # fmt: skip
    sockets = [each for member in everything for each in connections(member) if each.status == psutil.CONN_LISTEN]
    assert {each.laddr.port for each in sockets} >= set(services.ports.values())
    assert {each.laddr.ip for each in sockets} == {"127.0.0.1"}


def test_other_pages_in_a_browser_get_nothing(services: Stack, user: Services) -> None:
    for server, path, own, foreign in (
        ("prefect", "/api/flows/count", user.api_url.removesuffix("/api"), None),
        ("mlflow", "/api/2.0/mlflow/experiments/search", services.mlflow_uri, 403),
    ):
        url, body = f"http://127.0.0.1:{services.ports[server]}{path}", b'{"max_results": 1}'
        for origin, refusal in ((own, None), ("https://elsewhere.example", foreign)):
            headers = {
                "Content-Type": "application/json",
                "Origin": origin,
                "Authorization": authorization(services, server),
            }
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
                    code, readable = None, answer.headers["Access-Control-Allow-Origin"]
            except urllib.error.HTTPError as error:
                code, readable = error.code, None
            assert code == refusal, server
            assert readable in (None, own), server
    with urllib.request.urlopen(user.api_url.removesuffix("/api") + "/ui-settings", timeout=30) as answer:
        assert json.loads(answer.read())["api_url"] == user.api_url


def authorization(services: Stack, server: str) -> str:
    """Returns the header that logs in at one of the two servers."""
    logins = services.logins
    login = logins["PREFECT_API_AUTH_STRING"] if server == "prefect" else "owner:" + logins["MLFLOW_TRACKING_PASSWORD"]
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def connections(process: psutil.Process) -> Any:
    with suppress(psutil.NoSuchProcess):
        return process.net_connections("inet")
    return []


def test_nobody_gets_in_without_a_password_and_doctor_says_which_one_is_wrong(services: Stack, user: Services) -> None:
    for url in (f"{user.api_url}/flows/count", f"{services.mlflow_uri}/api/2.0/mlflow/experiments/search"):
        for wrong in (None, "Basic b3duZXI6d3Jvbmc="):
            headers = {"Content-Type": "application/json"} | ({"Authorization": wrong} if wrong else {})
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=60)
    wrongs = {
        "PREFECT_API_AUTH_STRING": ("the Prefect server at", "it refuses the password in PREFECT_API_AUTH_STRING"),
        "MLFLOW_TRACKING_PASSWORD": (
            "mlflow:",
            "it refuses the login in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_",
        ),
    }
    for variable, words in wrongs.items():
        stranger = Services(user.api_url, user.home, user.environment | {variable: "owner:wrong"})
        done = stranger.rl_training("doctor")
        assert done.returncode == 2
        problems = [line for line in done.stdout.splitlines() if line.startswith("problem")]
        assert all(word in problems[0] for word in words), done.stdout
    nobody = {name: value for name, value in user.environment.items() if name not in services.logins}
    said = Services(user.api_url, user.home, nobody).rl_training("doctor").stdout
    empty = Services(user.api_url, user.home, {**nobody, "PREFECT_API_AUTH_STRING": ""}).rl_training("doctor").stdout
    for each in (said, empty):
        assert "it asks for a password; set PREFECT_API_AUTH_STRING" in each
    assert "it asks for a login; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in said
    assert "has no password" not in user.rl_training("doctor").stdout


def test_each_server_has_a_database_that_the_other_one_cannot_open(services: Stack) -> None:
    query = services.postgres.query
    assert query("mlflow", "mlflow", "SELECT count(*) FROM experiments").stdout.strip() >= "1"
    assert query("prefect", "prefect", "SELECT count(*) FROM flow").stdout.strip() >= "2"
    for role, other in (("mlflow", "prefect"), ("prefect", "mlflow"), ("mlflow", "postgres")):
        refused = query(role, other, "SELECT * FROM pg_authid")
        assert refused.returncode != 0
        assert "permission denied" in refused.stderr


def test_a_run_is_started_and_watched(services: Stack, user: Services, registry: Any, trained: dict[str, Any]) -> None:
    assert trained["state"]["name"] == "Completed"
    run = mlflow_run(registry, trained)
    assert run.info.status == "FINISHED"
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert champion(registry) == ("1", run.info.run_id)
    artifacts = user.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [trained["id"]]}}})
    assert {"training-progress", "evaluations", "training-report"} <= {artifact["key"] for artifact in artifacts}
    (table,) = [json.loads(artifact["data"]) for artifact in artifacts if artifact["key"] == "evaluations"]
    assert [row["steps"] for row in table] == [256]
    files = list((services.folder / "mlflow" / "artifacts").rglob("manifest.json"))
    assert files  # what a run logs goes through the server, to its volume


def test_a_retraining_starts_from_the_champion_and_takes_over(
    registry: Any, trained: dict[str, Any], retrained: dict[str, Any]
) -> None:
    assert retrained["state"]["name"] == "Completed", retrained["state"]
    run = mlflow_run(registry, retrained)
    assert run.data.tags["retrain.start"] == f"models:/{MODEL}/1"
    assert run.data.params["seed"] != mlflow_run(registry, trained).data.params["seed"]
    assert champion(registry) == ("2", run.info.run_id)
    version = registry.get_model_version(MODEL, "2")
    assert version.tags["gate.verdict"] == "PROMOTE"
    assert json.loads(version.tags["gate.numbers"])["difference_lower"] > 0


def test_a_worker_that_is_asked_to_stop_lets_training_save(
    user: Services, stopped: tuple[LongRun, int, float, list[psutil.Process]]
) -> None:
    run, code, seconds, family = stopped
    assert (code, user.state(run.id)) == (0, "Cancelled")
    assert seconds < 90
    assert len(family) == 3  # the worker, the flow run, the shipper
    assert not [process for process in family if process.is_running()]
    run_dir = run.trains(500)
    assert json.loads((run_dir / "status.json").read_text())["status"] == "KILLED"
    assert run.mlflow_with_the_rest().info.status == "KILLED"


def test_a_champion_is_rolled_back_and_promoted_again(
    user: Services, registry: Any, trained: dict[str, Any], retrained: dict[str, Any], killed: LongRun
) -> None:
    first, second = (mlflow_run(registry, run).info.run_id for run in (trained, retrained))
    back = user.rl_training("rollback", MODEL, "--reason", "the operators do not trust it", "--json")
    assert back.returncode == 0, back.stderr
    assert champion(registry) == ("1", first)
    again = user.rl_training("promote", second, "--json")
    assert again.returncode == 0, again.stderr
    decided = json.loads(again.stdout.splitlines()[-1])
    assert (decided["verdict"], decided["version"], decided["alias"]) == ("PROMOTE", "2", "champion")
    assert champion(registry) == ("2", second)
    worse = json.loads(user.rl_training("promote", first, "--json").stdout.splitlines()[-1])
    assert (worse["verdict"], worse["alias"]) == ("REJECT", None)
    assert champion(registry) == ("2", second)


def test_the_champion_is_served(user: Services, registry: Any, retrained: dict[str, Any], killed: LongRun) -> None:
    import mlflow

    (port,) = free_ports(1)
    uri = f"models:/{MODEL}@champion"
    command = [str(BIN / "mlflow"), "models", "serve", "--model-uri", uri, "--env-manager", "local"]
    with (user.home / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=user.environment, cwd=user.home, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    observations = [[0.0, 0.0, 0.15, 1.0], [0.0, 0.0, -0.15, -1.0], [0.5, 0.1, 0.0, 0.0]]
    try:
        answers = eventually(lambda: ask(f"http://127.0.0.1:{port}/invocations", {"inputs": observations}), PATIENCE)
        assert answers, (user.home / "serve.log").read_text()
    finally:
        for process in family_of(server):
            process.kill()
        server.wait()
    import numpy as np

    mlflow.set_tracking_uri(user.environment["MLFLOW_TRACKING_URI"])
    try:
        expected = mlflow.pyfunc.load_model(uri).predict(np.array(observations, np.float32)).tolist()
    finally:
        mlflow.set_tracking_uri(None)
    assert answers["predictions"] == expected
    assert expected[:2] == [1, 0]  # towards where the pole falls


def ask(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
    return None


def test_a_run_that_was_killed_with_its_worker_is_found_dead_and_resumed(killed: LongRun, slow: Path) -> None:
    run_dir = killed.trains(1_000)
    killed_at = newest(run_dir)
    killed.comes_to("Crashed")
    crashed_at = datetime.fromisoformat(killed.user.get(f"/flow_runs/{killed.id}")["state"]["timestamp"])
    assert (crashed_at - killed.killed_at).total_seconds() < 180  # 90 s of silence, on a machine that may be busy
    slow.unlink()
    killed.retry()
    assert killed.comes_to("Completed", "Failed", "Crashed") == "Completed"
    run = killed.mlflow_with_the_rest()
    assert run.info.status == "FINISHED"
    attempts = [attempt["from_step"] for attempt in json.loads(run.data.tags["attempts"])]
    assert len(attempts) == 3
    assert attempts[0] == 0
    assert 500 <= attempts[1] < attempts[2] == killed_at
    points = [point.step for point in killed.registry.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert sorted(points) == [2_000, 4_000]


def test_a_cancel_ends_simulators_and_the_run_resumes_from_its_logged_artifact(
    services: Stack, user: Services, registry: Any, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    simulators = {**WITH_SIMULATORS, "env_kwargs": {"path": str(slow)}}
    run = LongRun(services, user, registry, overrides=simulators)
    run_dir = run.trains(0)
    assert eventually(lambda: "rollout/" in (run_dir / "metrics.jsonl").read_text(), PATIENCE)
    process = psutil.Process(json.loads((run_dir / "tracking.json").read_text())["process"]["pid"])
    family = [process, *process.children(recursive=True)]
    assert sum("time.sleep(600)" in " ".join(member.cmdline()) for member in family) >= 4
    assert user.prefect("flow-run", "cancel", run.id).returncode == 0
    run.comes_to("Cancelled")
    _, late = psutil.wait_procs(family, timeout=PATIENCE)
    assert [member for member in late if member.status() != psutil.STATUS_ZOMBIE] == []
    assert run.mlflow_with_the_rest().info.status == "KILLED"
    cancelled_at, files = newest(run_dir), sizes(run_dir)
    assert 0 < cancelled_at < 3_000
    time.sleep(1.0)
    assert sizes(run_dir) == files

    run_id = run.mlflow().info.run_id
    slow.unlink()
    shutil.rmtree(run_dir)  # only MLflow has it now
    resumed = user.run("resume-flow/default", source=run_id)
    assert resumed["state"]["name"] == "Completed", resumed["state"]
    assert mlflow_run(registry, resumed).info.run_id == run_id
    after = registry.get_run(run_id)
    assert after.info.status == "FINISHED"
    assert [attempt["from_step"] for attempt in json.loads(after.data.tags["attempts"])] == [0, cancelled_at]


def sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_no_secret_is_anywhere(services: Stack, user: Services, registry: Any, killed: LongRun) -> None:
    block = f"from prefect.blocks.system import Secret; Secret(value={BLOCK_SECRET!r}).save('case-token')"
    made = subprocess.run(
        [BIN / "python", "-c", block], env=user.environment, cwd=user.home, capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    tells = {"env_id": "case_envs:TellsItsToken-v0", "env_kwargs": {"api_token": "${prefect:case-token}", "at": "step"}}
    failed = user.run("train-flow/default", overrides={**BEGINNER, **tells})
    assert failed["state"]["name"] == "Failed"
    assert "http://sim/?key=***: refused" in failed["state"]["message"]

    passwords = [path.read_text() for path in services.secrets.iterdir()]
    secrets = [FILE_SECRET, BLOCK_SECRET, *passwords]
    places: dict[str, Callable[[], str]] = {"PostgreSQL, " + name: lambda name=name: services.postgres.dump(name)
                                            for name in ("mlflow", "prefect")}  # fmt: skip
    for path in services.folder.rglob("*"):
        if path.is_file() and services.secrets not in path.parents:
            places[str(path)] = lambda path=path: path.read_bytes().decode("latin-1")
    for process in psutil.process_iter(["cmdline"]):
        places[f"command line of process {process.pid}"] = lambda process=process: str(process.info["cmdline"])
    assert len(places) > 200
    assert [place for place, read in places.items() if (text := read()) and any(each in text for each in secrets)] == []
