"""The flows on a real Prefect server and a real MLflow store, with episodes of ten steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flow_records import TINY, artifacts, events, task_states

from rl_training.flows.resume import resume_flow
from rl_training.flows.train import train_flow
from rl_training.runtime.checkpoint import load_trainer_state, open_checkpoint
from rl_training.tracking.shipping.sync import sync

REPOSITORY = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.usefixtures("flow_home")


@pytest.fixture(scope="module")
def trained() -> tuple[Any, dict[str, Any]]:
    """A complete run of train-flow: its final state and its summary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_MLFLOW_UI", "http://127.0.0.1:5999")
        state = train_flow(TINY, {"seed": 3}, return_state=True)
    return state, state.result()


def test_train_flow_runs_its_tasks_and_summarizes_the_run(trained: tuple[Any, dict[str, Any]], flow_home: Path) -> None:
    state, summary = trained
    assert state.is_completed()
    assert [name for name, _, _ in task_states(state.state_details.flow_run_id, expected=5)] == [
        "validate",
        "train",
        "evaluate",
        "promote",
        "report",
    ]
    assert summary["num_timesteps"] == 2_000
    assert summary["stop_reason"] == "completed"
    assert summary["checkpoint"] == f"{summary['run_dir']}/checkpoints/step_000000002000"
    assert summary["evaluation"]["episodes"] == 20
    assert summary["evaluation"]["return_mean"] == 10.0
    assert summary["cpu_seconds"] > 0
    assert summary["best_policy_sha256"] == open_checkpoint(summary["best_checkpoint"]).policy_sha256
    assert summary["unsent"] == ""
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_evaluations_show_as_table_rows_and_events_while_progress_and_report_are_artifacts(
    trained: tuple[Any, dict[str, Any]],
) -> None:
    state, summary = trained
    flow_run_id = state.state_details.flow_run_id
    rows = json.loads(artifacts(flow_run_id, "table")["evaluations"])
    assert [row["steps"] for row in rows] == [500, 1_000, 1_500, 2_000]
    assert all(row["episodes"] == 3 for row in rows)
    finished = events("rl.evaluation.finished", f"rl-training.run.{summary['run_uid']}", expected=4)
    assert [event["num_timesteps"] for event in finished] == [500, 1_000, 1_500, 2_000]
    assert [event["eval/return_mean"] for event in finished] == [row["mean return"] for row in rows]
    assert artifacts(flow_run_id, "progress") == {"training-progress": 100.0}
    report = artifacts(flow_run_id, "markdown")["training-report"]
    assert "mean return 10.00 (95 % interval 10.00 to 10.00) over 20 held-out episodes" in report
    assert "PROMOTE: registered model plain, version 1, now champion" in report
    assert f"| MLflow run | [{summary['run_id']}]({summary['ui_command']}) |" in report
    page = artifacts(flow_run_id, "markdown")["mlflow-run"]
    assert page == f"[MLflow run]({summary['ui_command']})"
    assert summary["ui_command"].startswith("http://127.0.0.1:5999/#/experiments/")
    assert summary["run_dir"] in report
    assert "PROMOTE: plain, version 1" in artifacts(flow_run_id, "markdown")["promotion-verdict"]
    assert len(json.loads(artifacts(flow_run_id, "table")["promotion-episodes"])) == 20
    (promoted,) = events("rl.champion.promoted", "rl-training.model.plain", expected=1)
    assert promoted == {**summary["promotion"], "page": "http://127.0.0.1:5999/#/models/plain/versions/1"}
    assert events("rl.flow-run.ended", f"prefect.flow-run.{flow_run_id}", expected=1) == [{}]


def test_the_mlflow_run_is_finished_with_held_out_metrics_and_a_champion(
    trained: tuple[Any, dict[str, Any]], flow_client: Any
) -> None:
    state, summary = trained
    run = flow_client.get_run(summary["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["heldout/return_mean"] == summary["evaluation"]["return_mean"] == 10.0
    assert run.data.params["seed"] == "3"
    assert (summary["health"], run.data.tags.get("health")) == ([], None)
    assert run.data.tags["prefect.flow_run_id"] == str(state.state_details.flow_run_id)
    champion = flow_client.get_model_version_by_alias("plain", "champion")
    assert str(champion.version) == summary["promotion"]["version"] == "1"
    assert champion.run_id == summary["run_id"]
    assert {artifact.path for artifact in flow_client.list_artifacts(summary["run_id"])} >= {
        "checkpoints",
        "config.yaml",
        "evaluation.json",
        "report.html",
        "report.md",
    }


@pytest.mark.slow
def test_resume_flow_trains_on_from_the_logged_checkpoint_and_meets_the_champion(
    trained: tuple[Any, dict[str, Any]], flow_client: Any
) -> None:
    _, first = trained
    summary = resume_flow(first["run_id"], ["total_timesteps=3000"])
    assert summary["num_timesteps"] == 3_000
    assert summary["run_id"] != first["run_id"]  # a larger total is a run of its own
    run = flow_client.get_run(summary["run_id"])
    assert run.info.status == "FINISHED"
    steps = [point.step for point in flow_client.get_metric_history(summary["run_id"], "eval/return_mean")]
    assert sorted(steps) == [2_500, 3_000]
    # Both play 10.0 on every seed, so nothing speaks for a change.
    assert summary["promotion"]["verdict"] == "HOLD"
    assert flow_client.get_model_version_by_alias("plain", "champion").run_id == first["run_id"]


@pytest.mark.slow
def test_a_run_that_reached_its_return_is_finished_and_resumed_by_its_uid_as_another_attempt(flow_client: Any) -> None:
    config = {**TINY, "promotion": {"enabled": False}, "seed": 5}
    config["evaluation"] = {**TINY["evaluation"], "stop_at_return": -1e9, "stop_after": 2}
    began = train_flow(config, return_state=True)
    first = began.result()
    assert (first["stop_reason"], first["num_timesteps"]) == ("return_reached", 1_000)
    run = flow_client.get_run(first["run_id"])
    assert (run.info.status, run.data.tags["stop_reason"]) == ("FINISHED", "return_reached")
    assert "**Finished** early" in run.data.tags["mlflow.note.content"]

    resumed = resume_flow(first["run_uid"], return_state=True)
    second = resumed.result()
    assert second["run_id"] == first["run_id"]
    assert second["num_timesteps"] > 1_000
    tags = flow_client.get_run(first["run_id"]).data.tags
    ids = [str(state.state_details.flow_run_id) for state in (began, resumed)]
    assert [attempt["flow_run"] for attempt in json.loads(tags["attempts"])] == ids
    assert tags["prefect.flow"] == "train-flow"
    assert [tags[f"prefect.flow_run.{flow_run}"] for flow_run in ids] == ["attempt 1", "attempt 2"]
    assert all(flow_run in tags["mlflow.note.content"] for flow_run in ids)


@pytest.mark.slow
def test_resume_flow_fine_tunes_if_asked_to(trained: tuple[Any, dict[str, Any]], flow_client: Any) -> None:
    _, first = trained
    changed = {"env_id": "case_envs:SeedEcho-v0", "total_timesteps": 500, "promotion": {"enabled": False}}
    refused = resume_flow(first["run_id"], changed, return_state=True)
    assert "env_id: 'case_envs:Plain-v0' -> 'case_envs:SeedEcho-v0' (must be equal)" in str(refused.message)
    summary = resume_flow(first["run_id"], changed, fine_tune=True)
    assert (summary["num_timesteps"], summary["env_id"]) == (500, "case_envs:SeedEcho-v0")
    tags = flow_client.get_run(summary["run_id"]).data.tags
    assert tags["forked_from.fine_tuning"] == "6 tensors carried over; observation statistics: none"
    assert tags["forked_from.run_id"] == first["run_id"]


@pytest.mark.parametrize(
    ("overrides", "faults"),
    [
        ({"learing_rate": 1, "evaluation": {"evry": 5}}, ["learing_rate", "learning_rate", "evaluation.evry", "every"]),
        (["batch-size=8"], ["batch-size", "batch_size"]),
        ({"gamma": "high", "total_timesteps": 0}, ["gamma", "total_timesteps"]),
    ],
)
def test_wrong_parameters_fail_the_flow_at_once_and_name_every_fault(
    overrides: Any, faults: list[str], flow_home: Path
) -> None:
    runs = set((flow_home / "runs").glob("*"))
    state = train_flow(TINY, overrides, return_state=True)
    assert state.is_failed()
    assert state.name == "Failed"
    assert "ConfigError" in state.message
    assert [fault for fault in faults if fault not in state.message] == []
    assert set((flow_home / "runs").glob("*")) == runs
    assert task_states(state.state_details.flow_run_id, expected=0) == []


def test_a_refused_environment_fails_the_flow_before_anything_is_trained_or_logged(flow_home: Path) -> None:
    runs = set((flow_home / "runs").glob("*"))
    state = train_flow({**TINY, "env_id": "case_envs:NanEarly-v0"}, return_state=True)
    assert state.is_failed()
    assert "EnvironmentRefused" in state.message
    assert set((flow_home / "runs").glob("*")) == runs
    assert task_states(state.state_details.flow_run_id, expected=1) == [("validate", "Failed", 1)]


@pytest.mark.slow
def test_an_environment_that_breaks_is_retried_from_the_newest_checkpoint_in_the_same_run(flow_client: Any) -> None:
    """Each instance raises at its 700th step: from zero no attempt reaches 2,000, from checkpoints the third does."""
    config = {**TINY, "env_id": "case_envs:RaisesLate-v0", "num_envs": 1, "experiment": "retried"}
    config["promotion"] = {"enabled": False}
    state = train_flow(config, return_state=True)
    summary = state.result()
    assert summary["num_timesteps"] == 2_000
    assert summary["promotion"] is None
    states = task_states(state.state_details.flow_run_id, expected=4)
    assert [(name, outcome) for name, outcome, _ in states] == [
        ("validate", "Completed"),
        ("train", "Completed"),
        ("evaluate", "Completed"),
        ("report", "Completed"),
    ]
    assert 2 <= states[1][2] <= 4
    experiment = flow_client.get_experiment_by_name("retried")
    (run,) = flow_client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    steps = [point.step for point in flow_client.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert sorted(steps) == [500, 1_000, 1_500, 2_000]


@pytest.mark.slow
def test_no_attempt_follows_one_that_made_no_progress(flow_client: Any) -> None:
    config = {**TINY, "env_id": "case_envs:RaisesLate-v0", "env_kwargs": {"at": 100}, "num_envs": 1}
    config["experiment"] = "no_progress"
    state = train_flow(config, return_state=True)
    assert state.is_failed()
    assert "NoProgress: no new checkpoint since step 0" in state.message
    assert "sensor 3 returned no frame" in state.message
    assert task_states(state.state_details.flow_run_id, expected=2)[1] == ("train", "Failed", 2)
    experiment = flow_client.get_experiment_by_name("no_progress")
    (run,) = flow_client.search_runs([experiment.experiment_id])
    sync(Path(run.data.tags["run_dir"]))  # what a busy machine has not sent within the limit
    assert flow_client.get_run(run.info.run_id).info.status == "FAILED"


@pytest.mark.slow
def test_a_flow_run_that_is_run_again_continues_its_run(flow_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.api import held_out_evaluation

    evaluate, calls = held_out_evaluation.evaluate_checkpoint, []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ValueError("a mistake in code, which no task retry helps")
        return evaluate(*arguments, **options)

    monkeypatch.setattr(held_out_evaluation, "evaluate_checkpoint", fail_once)
    config = {**TINY, "experiment": "run_again", "promotion": {"enabled": False}}
    state = train_flow.with_options(retries=1)(config, return_state=True)
    assert state.is_completed()
    assert len(calls) == 2
    experiment = flow_client.get_experiment_by_name("run_again")
    (run,) = flow_client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_id == state.result()["run_id"]
    steps = [point.step for point in flow_client.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert sorted(steps) == [500, 1_000, 1_500, 2_000]


@pytest.mark.slow
def test_a_flow_run_that_is_run_again_after_its_return_was_reached_trains_no_further(
    flow_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first attempt fails after training, which has ended early; the callback of its settings is there as well."""
    from rl_training.api import held_out_evaluation

    evaluate, calls = held_out_evaluation.evaluate_checkpoint, []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ValueError("a mistake in code, which no task retry helps")
        return evaluate(*arguments, **options)

    monkeypatch.setattr(held_out_evaluation, "evaluate_checkpoint", fail_once)
    evaluation = {**TINY["evaluation"], "stop_at_return": 10.0, "stop_after": 1}
    config = {**TINY, "experiment": "reached", "evaluation": evaluation, "promotion": {"enabled": False}}
    config |= {"total_timesteps": 20_000, "callbacks": ["scripted_envs:Counts"]}
    state = train_flow.with_options(retries=1)(config, return_state=True)
    assert state.is_completed()
    assert len(calls) == 2
    summary = state.result()
    assert summary["stop_reason"] == "return_reached"
    assert summary["num_timesteps"] < 5_000
    run = flow_client.get_run(summary["run_id"])
    assert (run.info.status, run.data.tags["stop_reason"]) == ("FINISHED", "return_reached")
    steps = [point.step for point in flow_client.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert max(steps) == summary["num_timesteps"]
    states = load_trainer_state(open_checkpoint(summary["checkpoint"]))["callbacks"]
    assert states["scripted_envs:Counts:0"] == {"updates": summary["num_timesteps"] // 100}
    report = artifacts(state.state_details.flow_run_id, "markdown")["training-report"]
    assert "| training ended | ended early because evaluation.stop_at_return was reached |" in report


def test_a_job_trains_once_at_a_time() -> None:
    from rl_training.runs.locks import job_lock

    with job_lock("nightly"):
        state = train_flow(TINY, {"job": "nightly"}, return_state=True)
    assert state.is_failed()
    assert "job 'nightly' is training already" in state.message


def test_flow_modules_import_neither_torch_nor_mlflow_nor_gymnasium() -> None:
    flows = ", ".join(
        f"rl_training.flows.{name}" for name in ("train", "resume", "retrain", "evaluate", "promote", "sweep", "trial")
    )
    code = f"import sys, rl_training.services.flow_runner, {flows}; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    modules = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in ("torch", "mlflow", "gymnasium") if name in modules] == []
