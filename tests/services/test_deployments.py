"""prefect.yaml deployed to a real Prefect server, and its deployments run by a real process worker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from services_support import TINY, Services, eventually, mlflow_run, processes_of

from rl_training.seeding import derived_seed

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def trained(services: Services) -> dict[str, Any]:
    """The flow run of train-flow/default."""
    return services.run("train-flow/default", overrides=TINY)


def test_train_flow_is_run_by_a_worker_tracked_and_promoted(trained: dict[str, Any], services_client: Any) -> None:
    assert trained["state"]["name"] == "Completed"
    run = mlflow_run(services_client, trained)
    assert run.info.status == "FINISHED"
    assert run.data.tags["prefect.deployment"] == "train-flow/default"
    assert run.data.metrics["heldout/return_mean"] == 10.0
    steps = [point.step for point in services_client.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert sorted(steps) == [500, 1_000, 1_500, 2_000]
    assert services_client.get_model_version_by_alias("plain", "champion").run_id == run.info.run_id


def test_resume_flow_trains_on_from_the_mlflow_run(
    services: Services, trained: dict[str, Any], services_client: Any
) -> None:
    source = mlflow_run(services_client, trained).info.run_id
    resumed = services.run("resume-flow/default", source=source, overrides={"total_timesteps": 2_500})
    assert resumed["state"]["name"] == "Completed"
    run = mlflow_run(services_client, resumed)
    assert run.info.run_id != source
    assert run.info.status == "FINISHED"
    assert [point.step for point in services_client.get_metric_history(run.info.run_id, "eval/return_mean")] == [2_500]


def test_a_retraining_starts_from_the_champion_which_is_evaluated_and_challenged_by_deployments_too(
    services: Services, trained: dict[str, Any], services_client: Any
) -> None:
    champion = services_client.get_model_version_by_alias("plain", "champion")
    retrained = services.run("retrain-flow/default", overrides={**TINY, "total_timesteps": 500})
    assert retrained["state"]["name"] == "Completed"
    run = mlflow_run(services_client, retrained)
    assert run.info.status == "FINISHED"
    assert run.data.tags["retrain.start"] == f"models:/plain/{champion.version}"
    assert run.data.tags["forked_from.run_id"] == champion.run_id
    assert run.data.params["seed"] == str(derived_seed(0, f"flow run {retrained['id']}"))

    young = services.run("retrain-flow/default", overrides=TINY, min_hours=24)
    assert (young["state"]["type"], young["state"]["name"]) == ("COMPLETED", "Skipped")
    assert "is due when it is 24 hours old" in young["state"]["message"]

    evaluated = services.run("evaluate-flow/default", source="models:/plain@champion", episodes=20, roll_back=True)
    assert evaluated["state"]["name"] == "Completed"
    experiment = services_client.get_experiment_by_name("monitoring").experiment_id
    (monitoring,) = services_client.search_runs([experiment], "tags.registered_model = 'plain'")
    assert monitoring.data.metrics["monitoring/return_mean"] == 10.0
    assert monitoring.data.metrics["monitoring/dropped"] == 0.0

    offered = services.run("promote-flow/default", candidate=run.info.run_id, overrides={"promotion": {"floor": 11.0}})
    assert offered["state"]["name"] == "Completed"
    wanted = {"artifacts": {"flow_run_id": {"any_": [offered["id"]]}, "key": {"any_": ["promotion-verdict"]}}}
    (verdict,) = services.post("/artifacts/filter", wanted)
    assert verdict["data"].startswith("# REJECT: plain, version ")
    assert "does not reach the floor of 11" in verdict["data"]
    assert services_client.get_model_version_by_alias("plain", "champion").version == champion.version
    promoted = {"filter": {"event": {"name": ["rl.champion.promoted"]}, "order": "ASC"}}
    told = [event["payload"] for event in services.post("/events/filter", promoted)["events"]]
    assert next(event["run_id"] for event in told if event["model"] == "plain") == champion.run_id


def test_a_typo_fails_the_flow_run_and_trains_nothing(services: Services, trained: dict[str, Any]) -> None:
    before, runs = services.run_directories(), {"flows": {"name": {"any_": ["train-flow"]}}}
    failed = services.run("train-flow/default", overrides={"learing_rate": 1e-4, "evaluation": {"evry": 500}})
    assert failed["state"]["name"] == "Failed"
    assert "did you mean learning_rate?" in failed["state"]["message"]
    assert "evaluation.evry" in failed["state"]["message"]
    assert services.run_directories() == before
    logged = log_lines(services, failed["id"])
    assert [line for line in logged if "did you mean learning_rate?" in line and "Finished" not in line] == [
        failed["state"]["message"].removeprefix("Flow run encountered an exception: ConfigError: ")
    ]
    assert not any("Traceback" in line for line in logged)
    there = services.post("/flow_runs/count", runs)
    # What Prefect itself can tell makes no flow run.
    for wrong in ("lerning=3", "overrides={'seed': 3}", 'overrides="{\\"seed\\": 3}"'):
        assert services.prefect("deployment", "run", "train-flow/default", "--param", wrong).returncode == 1, wrong
    assert services.post("/flow_runs/count", runs) == there


def test_a_cancelled_flow_run_saves_and_ends_as_cancelled(
    services: Services, trained: dict[str, Any], services_client: Any
) -> None:
    before = services.run_directories()
    overrides = {**TINY, "total_timesteps": 10_000_000, "checkpoint": {"every": 1_000}}
    flow_run = services.begin("train-flow/default", overrides=overrides)
    (run_dir,) = eventually(lambda: services.run_directories() - before, 180)
    cancel_after_a_checkpoint(services, flow_run, run_dir)
    assert eventually(lambda: not processes_of(run_dir), 180)
    services.rl_training("sync", str(run_dir))  # what a busy machine did not send within the time limit of a cancel
    run = mlflow_run(services_client, {"id": flow_run})
    assert services_client.get_run(run.info.run_id).info.status == "KILLED"
    newest = max(run_dir.glob("checkpoints/step_*"))
    step = int(newest.name.removeprefix("step_"))
    assert (
        f"stopped: saved at step {step:,} in {newest}; a retry of this flow run or `rl-training flow resume {newest}` "
        "resumes there"
    ) in log_lines(services, flow_run)
    assert not any("Crash detected" in line for line in log_lines(services, flow_run))
    history = [state["type"] for state in services.get(f"/flow_run_states/?flow_run_id={flow_run}")]
    assert "CRASHED" not in history, history
    time.sleep(1.0)
    assert max(run_dir.glob("checkpoints/step_*")) == newest  # nothing trains on

    # The same run continues, and its record keeps who began it beside who has continued it.
    resumed = services.begin("resume-flow/default", source=run.info.run_id)
    cancel_after_a_checkpoint(services, resumed, run_dir)
    assert eventually(lambda: not processes_of(run_dir), 180)
    services.rl_training("sync", str(run_dir))
    eventually(lambda: services_client.get_run(run.info.run_id).data.tags["attempt"] == "2", 180)
    tags = services_client.get_run(run.info.run_id).data.tags
    assert (tags["prefect.flow"], tags["prefect.deployment"]) == ("train-flow", "train-flow/default")
    assert tags["mlflow.source.name"] == run.data.tags["mlflow.source.name"]
    attempts = json.loads(tags["attempts"])
    assert [attempt["flow_run"] for attempt in attempts] == [flow_run, resumed]
    assert [attempt["from_step"] for attempt in attempts] == [0, int(newest.name.removeprefix("step_"))]
    assert (tags[f"prefect.flow_run.{flow_run}"], tags[f"prefect.flow_run.{resumed}"]) == (
        "attempt 1",
        "attempt 2",
    )


def log_lines(services: Services, flow_run: str) -> list[str]:
    """What a flow run and its tasks have logged, and the worker about it."""
    wanted = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"}
    return [line["message"] for line in services.post("/logs/filter", wanted)]


def cancel_after_a_checkpoint(services: Services, flow_run: str, run_dir: Path) -> None:
    """Cancels a flow run in Prefect once it has saved a checkpoint of its own, and waits for its end."""
    before = set(run_dir.glob("checkpoints/step_*[1-9]*"))
    assert eventually(lambda: set(run_dir.glob("checkpoints/step_*[1-9]*")) - before, 180)
    assert services.prefect("flow-run", "cancel", flow_run).returncode == 0
    assert eventually(lambda: services.state(flow_run) == "Cancelled", 180)
