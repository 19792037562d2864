"""Maintenance of a server: `deploy`, `doctor`, the automation for crashed runs, one run for many that were missed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from services_support import BIN, ENV_SECRET, TINY, Services, end, eventually, mlflow_run

from rl_training.errors import UserError
from rl_training.flows.artifacts_and_events import FLOW_RUN_ENDED
from rl_training.services import crash_automations
from rl_training.services.deploy import deploy
from rl_training.services.doctor import diagnose
from rl_training.services.worker.stopping import LABEL, read_unfinished

pytestmark = pytest.mark.services

BLOCK_SECRET = "CASE-SECRET-BLOCK-0002"
OURS: dict[str, Any] = {
    "tags": ["rl-training"],
    "work_pool": {"name": "rl-training", "job_variables": {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}},
}


@pytest.fixture(autouse=True)
def at_the_server(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has Prefect's client in this process, and the commands that it starts, use the server."""
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "RL_TRAINING_HOME"):
        monkeypatch.setenv(name, services.environment[name])
    with temporary_settings({PREFECT_API_URL: services.api_url}):
        yield


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, the steps of the environment of `nightly` take their time."""
    return tmp_path_factory.mktemp("gate") / "slow"


@pytest.fixture(scope="module")
def project(gate: Path) -> Path:
    """A training with two secrets, a retraining each hour (both store overrides), and a daily evaluation of a model."""
    secrets = {"api_token": "${prefect:simulator.token}", "at": "${env:CASE_TOKEN}"}
    training = {
        **TINY,
        "env_id": "case_envs:TellsItsToken-v0",
        "env_kwargs": secrets,
        "vectorization": "async",
        "seed": 1,
    }
    off = {"promotion": {"enabled": False}}
    hourly = {**TINY, **off, "env_id": "case_envs:SpawnsChildSlowWhile-v0", "env_kwargs": {"path": str(gate)}}
    entries = [
        {
            "name": "mine",
            "entrypoint": "rl_training.flows.train.train_flow",
            "parameters": {"config": "ppo/cartpole", "overrides": {**training, **off}},
            "concurrency_limit": 1,
        },
        {
            "name": "hourly",
            "entrypoint": "rl_training.flows.retrain.retrain_flow",
            "parameters": {"config": "ppo/cartpole", "overrides": hourly},
            "schedules": [{"slug": "hourly", "interval": 3_600, "timezone": "UTC"}],
            "concurrency_limit": {"limit": 1, "collision_strategy": "CANCEL_NEW"},
        },
        {
            "name": "daily",
            "entrypoint": "rl_training.flows.evaluate.evaluate_flow",
            "parameters": {"source": "models:/never_promoted@champion"},
            "schedules": [{"slug": "daily", "interval": 86_400, "timezone": "UTC"}],
            "concurrency_limit": {"limit": 1, "collision_strategy": "ENQUEUE"},
        },
    ]
    file = gate.with_name("prefect.yaml")
    file.write_text(yaml.safe_dump({"pull": [], "deployments": [{**entry, **OURS} for entry in entries]}))
    return file


@pytest.fixture(scope="module")
def deployed(services: Services, project: Path) -> dict[str, Any]:
    done = services.rl_training("deploy", "--file", str(project), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_deploy_makes_what_is_missing_and_leaves_what_is_there(
    services: Services, project: Path, deployed: dict[str, Any]
) -> None:
    assert deployed["work_pools"] == {"rl-training": "unchanged"}
    assert set(deployed["automations"].values()) == {"created"}
    there = services.get("/deployments/name/retrain-flow/hourly")
    (schedule,) = there["schedules"]
    services.patch(f"/deployments/{there['id']}/schedules/{schedule['id']}", {"active": False})  # as in the UI

    again = deploy(project)
    assert set(again.automations.values()) == {"unchanged"}
    assert (deployed["paused"], again.paused) == ([], ["retrain-flow/hourly, schedule hourly"])
    assert "paused, does not run: retrain-flow/hourly, schedule hourly" in again.lines()
    assert "      hourly (UTC): paused, does not run" in again.lines()
    assert [len(s["next"]) for one in again.to_dict()["deployments"] for s in one["schedules"]] == [0, 3]
    after = services.get("/deployments/name/retrain-flow/hourly")
    assert after["id"] == there["id"]
    assert [(one["id"], one["active"]) for one in after["schedules"]] == [(schedule["id"], False)]
    assert after["global_concurrency_limit"]["limit"] == 1
    services.patch(f"/deployments/{there['id']}/schedules/{schedule['id']}", {"active": True})

    wrong = project.with_name("wrong.yaml")
    wrong.write_text(
        project.read_text().replace("interval: 3600", "cron: 0 0 31 2 *").replace("name: mine", "name: new")
    )
    with pytest.raises(UserError, match="never fires"):
        deploy(wrong)
    assert "train-flow/new" not in services.prefect("deployment", "ls").stdout


def test_stored_overrides_are_kept_and_secrets_are_nowhere_but_in_the_environment(
    services: Services, deployed: dict[str, Any], services_client: Any
) -> None:
    from prefect.blocks.system import Secret

    Secret(value={"token": BLOCK_SECRET}).save("simulator")
    flow_run = services.run("train-flow/mine", overrides={"seed": 3, "evaluation.episodes": 2})
    assert flow_run["state"]["name"] == "Completed", flow_run["state"]
    assert flow_run["parameters"]["overrides"] == {"seed": 3, "evaluation.episodes": 2}
    run = mlflow_run(services_client, flow_run)
    given = {
        key: run.data.params[key] for key in ("seed", "total_timesteps", "evaluation.episodes", "evaluation.every")
    }
    assert given == {"seed": "3", "total_timesteps": "2000", "evaluation.episodes": "2", "evaluation.every": "500"}
    assert run.data.params["env_kwargs.api_token"] == "${prefect:simulator.token}"

    files = [path for path in services.home.rglob("*") if path.is_file()]
    reference, secrets = b"${prefect:simulator.token}", (ENV_SECRET.encode(), BLOCK_SECRET.encode())
    holds_reference = {path.name for path in files if reference in path.read_bytes()}
    assert {"config.yaml", "mlflow.db", "tracking.json"} <= holds_reference
    assert any(name.startswith("prefect.db") for name in holds_reference)
    assert [path for path in files if any(secret in path.read_bytes() for secret in secrets)] == []


def test_of_runs_that_were_missed_one_runs_and_nothing_else_trains_its_job_meanwhile(
    services: Services, deployed: dict[str, Any], gate: Path
) -> None:
    before = services.run_directories()
    hourly = services.get("/deployments/name/retrain-flow/hourly")["id"]
    gate.touch()
    missed(services, hourly, hours=10, runs=6)
    (run_dir,) = eventually(lambda: services.run_directories() - before, 180)
    assert eventually(lambda: sorted(states(services, hourly)) == ["Cancelled"] * 5 + ["Running"], 180)

    by_hand = services.post(f"/deployments/{hourly}/create_flow_run", {"parameters": {}})["id"]
    assert eventually(lambda: services.state(by_hand) == "Cancelled", 180)
    assert "concurrency limit" in services.get(f"/flow_runs/{by_hand}")["state"]["message"]
    by_command = services.rl_training("train", "--config", "ppo/cartpole", "--set", "job=retrain-flow/hourly")
    assert by_command.returncode == 2
    assert "job 'retrain-flow/hourly' is training already" in by_command.stderr
    gate.unlink()
    assert eventually(lambda: "Completed" in states(services, hourly), 180)

    # What a worker takes up afterwards has been made up for.
    missed(services, hourly, hours=20, runs=1)
    assert eventually(lambda: "Skipped" in states(services, hourly), 180)
    assert services.run_directories() - before == {run_dir}


def test_a_daily_evaluation_is_skipped_until_there_is_a_champion_and_fails_where_somebody_asks_for_one(
    services: Services, deployed: dict[str, Any]
) -> None:
    daily = services.get("/deployments/name/evaluate-flow/daily")["id"]
    missed(services, daily, hours=48, runs=1)
    asked = services.run("evaluate-flow/daily")
    assert asked["state"]["name"] == "Failed"
    nobody = f"MLflow at sqlite:///{services.home}/mlflow.db has no version of a registered model 'never_promoted'"
    assert nobody in asked["state"]["message"]
    assert eventually(lambda: "Skipped" in states(services, daily), 180)
    runs = services.post("/flow_runs/filter", {"deployments": {"id": {"any_": [daily]}}})
    (skipped,) = [run["state"] for run in runs if run["state"]["name"] == "Skipped"]
    assert (skipped["type"], skipped["message"]) == ("COMPLETED", nobody)


def missed(services: Services, deployment: str, *, hours: int, runs: int) -> None:
    """Has the server schedule what it had scheduled while no worker was there, and lets the worker see it at once."""
    services.patch("/work_pools/rl-training", {"is_paused": True})
    begin = datetime.now(UTC) - timedelta(hours=hours)
    body = {"start_time": begin.isoformat(), "min_runs": runs, "max_runs": runs}
    services.post(f"/deployments/{deployment}/schedule", body)
    services.patch("/work_pools/rl-training", {"is_paused": False})


def states(services: Services, deployment: str) -> list[str]:
    """The states of all flow runs of a deployment that were due."""
    of = {"deployments": {"id": {"any_": [deployment]}}}
    due = {"flow_runs": {"expected_start_time": {"before_": datetime.now(UTC).isoformat()}}}
    return [run["state"]["name"] for run in services.post("/flow_runs/filter", of | due)]


@pytest.mark.usefixtures("quick_automations")
def test_silence_and_a_start_that_does_not_come_are_crashes_and_nothing_else_is(services: Services) -> None:
    tagged, others = ["rl-training"], ["of another team"]
    silent = flow_run_of_no_process(services, tagged, "Pending", "Running")
    starting = flow_run_of_no_process(services, tagged, "Pending")
    done = flow_run_of_no_process(services, tagged, "Pending", "Running", "Completed")
    foreign = flow_run_of_no_process(services, others, "Pending", "Running")
    told = flow_run_of_no_process(services, tagged, "Pending", "Running", "Completed")
    for flow_run in (silent, done, told, foreign):  # those of `done` and `told` come late
        emit(services, "prefect.flow-run.heartbeat", flow_run, others if flow_run is foreign else tagged)
    emit(services, FLOW_RUN_ENDED, told, tagged)
    began = time.monotonic()
    assert eventually(lambda: [services.state(run) for run in (silent, starting)] == ["Crashed", "Crashed"], 180)
    assert time.monotonic() - began > 5
    assert "No heartbeat for 10 s" in services.get(f"/flow_runs/{silent}")["state"]["message"]
    # A late heartbeat alone is taken for silence, which changes no state; the event after it prevents that.
    assert eventually(lambda: {silent, done} <= acted_upon(services), 180)
    assert told not in acted_upon(services)
    assert [services.state(run) for run in (done, told, foreign)] == ["Completed", "Completed", "Running"]


@pytest.fixture
def quick_automations(deployed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has the automations for crashes wait 10 s instead of minutes."""
    with monkeypatch.context() as patch:
        patch.setattr(crash_automations, "SILENCE_SECONDS", 10)
        patch.setattr(crash_automations, "START_SECONDS", 10)
        update_automations()
        yield
    update_automations()


def update_automations() -> None:
    with get_client(sync_client=True) as client:
        outcomes = crash_automations.install_automations(client, crash_automations.build_automations())
    assert list(outcomes.values()) == ["updated", "updated", "unchanged"]


def acted_upon(services: Services) -> set[str]:
    """The flow runs on which an automation has acted, as the server's events have it."""
    wanted = {"filter": {"event": {"prefix": ["prefect.automation.action.triggered"]}}}
    events = services.post("/events/filter", wanted)["events"]
    ids = {related["prefect.resource.id"] for event in events for related in [event["resource"], *event["related"]]}
    return {id_.removeprefix("prefect.flow-run.") for id_ in ids}


def flow_run_of_no_process(services: Services, tags: list[str], *state_names: str, **fields: Any) -> str:
    flow = services.post("/flows/", {"name": "no-process"})["id"]
    run = services.post("/flow_runs/", {"flow_id": flow, "tags": tags, **fields})["id"]
    for name in state_names:
        services.post(f"/flow_runs/{run}/set_state", {"state": {"type": name.upper(), "name": name}})
    return str(run)


def emit(services: Services, name: str, flow_run: str, tags: list[str]) -> None:
    related = [{"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in tags]
    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": name,
        "resource": {"prefect.resource.id": f"prefect.flow-run.{flow_run}"},
        "related": related,
    }
    services.post("/events", [event])


def test_doctor_names_what_is_wrong_and_what_to_do(services: Services, deployed: dict[str, Any]) -> None:
    pool, (silence, *_) = "/work_pools/rl-training", crash_automations.build_automations()
    promoting = f"/deployments/{services.get('/deployments/name/promote-flow/default')['id']}"
    services.patch(pool, {"is_paused": True})
    services.patch(promoting, {"concurrency_limit": None})
    with get_client(sync_client=True) as client:
        client.delete_automation(client.read_automations_by_name(silence.name)[0].id)
    try:
        diagnosis = diagnose()
    finally:
        services.patch(pool, {"is_paused": False})
        services.patch(promoting, {"concurrency_limit": 1})
    problems = [finding.line() for finding in diagnosis.findings if finding.status == "problem"]
    assert not diagnosis.healthy
    assert problems == [
        "problem limits: promote-flow/default has no concurrency limit; set concurrency_limit in prefect.yaml, then "
        "`rl-training deploy`",
        "problem work pool: rl-training is paused; `prefect work-pool resume rl-training` lets its flow runs start "
        "again",
        f"problem automations: {silence.name!r} does not exist; run `rl-training deploy` to fix it",
    ]
    notes = [finding for finding in diagnosis.findings if finding.status == "note" and finding.check == "prefect"]
    for note, name in zip(notes, ("CORS_ALLOWED_ORIGINS", "API_AUTH_STRING"), strict=True):
        assert f"PREFECT_SERVER_{name}" in note.advice  # as plain `prefect server start` leaves it
    assert {finding.check for finding in diagnosis.findings if finding.status == "ok"} >= {
        "prefect", "clock", "deployments", "workers", "automations", "mlflow", "artifacts", "runs",
    }  # fmt: skip


def test_a_disk_that_fills_up_pauses_the_pool_of_its_worker(services: Services, deployed: dict[str, Any]) -> None:
    services.prefect("work-pool", "create", "--type", "process", "of-a-full-disk")
    environment = {**services.environment, "RL_TRAINING_LOW_DISK_GB": "1e9"}
    command = ["env", "--default-signal=INT", str(BIN / "rl-training"), "worker", "--pool", "of-a-full-disk"]
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert eventually(lambda: services.get("/work_pools/of-a-full-disk")["is_paused"], 180)
    finally:
        end(worker)
    assert not services.get("/work_pools/rl-training")["is_paused"]


def test_a_worker_tells_its_own_flow_runs_from_those_of_others(services: Services, deployed: dict[str, Any]) -> None:
    ours, theirs, new, newer = (
        flow_run_of_no_process(services, [], "Pending", "Running", work_pool_name="rl-training") for _ in range(4)
    )
    for run, worker in ((ours, "a"), (theirs, "b")):
        services.patch(f"/flow_runs/{run}/labels", {LABEL: worker})

    async def found() -> set[str]:
        async with get_client() as client:
            runs = await read_unfinished(client, "rl-training", "a", frozenset({UUID(theirs), UUID(new)}))
            return {str(run.id) for run in runs}

    assert asyncio.run(found()) == {ours, new}
    for run in (ours, theirs, new, newer):
        services.post(f"/flow_runs/{run}/set_state", {"state": {"type": "FAILED", "name": "Failed"}})
