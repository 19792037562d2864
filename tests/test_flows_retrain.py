"""retrain-flow: when it trains, from which weights it starts, and with which seed."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flow_records import TINY, task_states
from prefect.exceptions import ParameterTypeError

from rl_training.api import retraining
from rl_training.api.retraining import plan_retraining
from rl_training.cli.app import run
from rl_training.errors import CheckpointError
from rl_training.experiment.loading import config_from_mapping
from rl_training.flows.retrain import retrain_flow
from rl_training.runs.locks import job_lock
from rl_training.seeding import derived_seed
from rl_training.services.flow_runner import FlowSummary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flow_home")]

NIGHTLY = {
    **TINY,
    "seed": 5,
    "total_timesteps": 1_000,
    "experiment": "nightly",
    "promotion": {"model": "nightly", "floor": 5.0, "episodes": 20},
}

YOUNG = r"version 1 of nightly, the champion, is 0\.\d hours old; a retraining is due when it is 24 hours old"


@pytest.fixture(scope="module")
def first() -> tuple[Any, dict[str, Any]]:
    """The first retraining of a task: its final state and its summary."""
    state = retrain_flow(NIGHTLY, return_state=True)
    return state, state.result()


def flow_run_of(state: Any) -> str:
    return str(state.state_details.flow_run_id)


def test_the_first_retraining_starts_from_scratch_with_a_seed_of_its_own(
    first: tuple[Any, dict[str, Any]], flow_client: Any
) -> None:
    state, summary = first
    assert (summary["skipped"], summary["start"], summary["num_timesteps"]) == (None, "scratch", 1_000)
    assert summary["reason"] == "nightly has no champion yet: this retraining starts from scratch"
    assert FlowSummary(summary).lines()[1] == f"{summary['reason']}; seed {summary['seed']}"
    assert summary["seed"] == derived_seed(5, f"flow run {flow_run_of(state)}")
    assert (summary["promotion"]["model"], summary["promotion"]["alias"]) == ("nightly", "champion")
    run = flow_client.get_run(summary["run_id"])
    assert run.data.params["seed"] == str(summary["seed"])
    assert run.data.tags["retrain.start"] == "scratch"
    assert run.data.tags["prefect.flow"] == "retrain-flow"
    assert "forked_from.run_id" not in run.data.tags
    names = [name for name, _, _ in task_states(flow_run_of(state), expected=6)]
    assert names == ["guard", "validate", "train", "evaluate", "promote", "report"]


def test_the_next_one_starts_from_the_champions_weights_and_plays_against_it(
    first: tuple[Any, dict[str, Any]], flow_client: Any
) -> None:
    _, before = first
    state = retrain_flow(NIGHTLY, {"learning_rate": 0.001}, return_state=True)
    summary = state.result()
    assert summary["start"] == "models:/nightly/1"
    assert summary["seed"] != before["seed"]
    tags = flow_client.get_run(summary["run_id"]).data.tags
    assert tags["retrain.start"] == "models:/nightly/1"
    assert tags["forked_from.run_id"] == before["run_id"]
    assert tags["forked_from.fine_tuning"] == "6 tensors carried over; observation statistics: none"
    assert "learning_rate" in tags["forked_from.differences"]
    # Its first evaluation is as good as the champion: both play 10.0, and a tie keeps the champion.
    (first_evaluation, *_) = sorted(
        flow_client.get_metric_history(summary["run_id"], "eval/return_mean"), key=lambda point: point.step
    )
    assert first_evaluation.value == 10.0
    assert summary["promotion"]["verdict"] == "HOLD"
    assert flow_client.get_model_version_by_alias("nightly", "champion").run_id == before["run_id"]
    names = [name for name, _, _ in task_states(flow_run_of(state), expected=7)]
    assert names[:4] == ["guard", "validate", "fetch", "train"]


def test_a_young_champion_and_a_job_that_trains_are_reasons_to_skip(
    first: tuple[Any, dict[str, Any]], flow_home: Path
) -> None:
    runs = set((flow_home / "runs").glob("*"))
    young = retrain_flow(NIGHTLY, min_hours=24.0, return_state=True)
    assert (young.type.value, young.name) == ("COMPLETED", "Skipped")
    assert re.fullmatch(YOUNG, young.message)
    assert young.result() == {"skipped": young.message}
    assert task_states(flow_run_of(young), expected=1) == [("guard", "Completed", 1)]

    with job_lock("nightly"):
        busy = retrain_flow(NIGHTLY, {"job": "nightly"}, return_state=True)
    assert (busy.type.value, busy.name) == ("COMPLETED", "Skipped")
    assert "job 'nightly' is training already (process" in busy.message
    assert task_states(flow_run_of(busy), expected=0) == []
    assert set((flow_home / "runs").glob("*")) == runs


def test_a_retry_keeps_its_seed_and_run_and_is_not_skipped_for_its_own_champion(
    flow_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_training.flows import pipeline

    evaluate, calls = pipeline.evaluate, []

    def fail_after_the_first(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ValueError("a mistake in code, which no task retry helps")
        return evaluate(*arguments, **options)

    monkeypatch.setattr(pipeline, "evaluate", fail_after_the_first)
    guards = []
    plan = retraining.plan_retraining
    monkeypatch.setattr(retraining, "plan_retraining", lambda *a, **k: guards.append(k) or plan(*a, **k))
    config = {**NIGHTLY, "experiment": "retrain_again", "promotion": {"enabled": False, "model": "again"}}
    state = retrain_flow.with_options(retries=1)(config, min_hours=1.0, return_state=True)
    assert state.is_completed()
    assert [given["min_hours"] for given in guards] == [1.0, 0.0]
    experiment = flow_client.get_experiment_by_name("retrain_again")
    (run,) = flow_client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == str(state.result()["seed"])
    assert run.info.run_id == state.result()["run_id"]


@pytest.mark.parametrize("parameters", [{"start": "champio"}, {"min_hours": -1}, {"min_hours": float("nan")}])
def test_parameters_of_no_sense_are_refused_before_anything_runs(parameters: Any) -> None:
    with pytest.raises(ParameterTypeError, match=next(iter(parameters))):
        retrain_flow(NIGHTLY, **parameters)


def test_a_typo_in_the_settings_trains_nothing(flow_home: Path) -> None:
    runs = set((flow_home / "runs").glob("*"))
    state = retrain_flow.with_options(retries=1)(NIGHTLY, {"learing_rate": 1}, return_state=True)
    assert state.is_failed()
    assert "did you mean learning_rate?" in state.message
    assert set((flow_home / "runs").glob("*")) == runs
    assert task_states(flow_run_of(state), expected=0) == []


def test_the_command_line_says_why_it_skipped(
    first: tuple[Any, dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "nightly.yaml"
    config.write_text(json.dumps(NIGHTLY))
    command = ["flow", "retrain", "--config", str(config), "--min-hours", "24"]
    assert run([*command, "--json"]) == 0
    assert "is due when it is 24 hours old" in json.loads(capfd.readouterr().out.splitlines()[-1])["skipped"]
    assert run(command) == 0
    assert re.fullmatch(f"skipped: {YOUNG}\n", capfd.readouterr().out)
    assert run([*command[:-1], "-1"]) == 2


# The plan alone, with champions of any age.


def plan_for(monkeypatch: pytest.MonkeyPatch, hours: float, algo: str = "ppo", **options: Any) -> Any:
    created = (time.time() - 3600 * hours) * 1000
    champion = SimpleNamespace(name="m", version="7", creation_timestamp=created, tags={"algo": algo})
    monkeypatch.setattr(retraining, "get_champion", lambda client, model: champion)
    return plan_retraining(config_from_mapping(NIGHTLY), **options)


def test_a_champion_is_due_when_it_is_old_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not plan_for(monkeypatch, 23.9, start="champion", min_hours=24).due
    due = plan_for(monkeypatch, 24.1, start="champion", min_hours=24)
    assert (due.due, due.source) == (True, "models:/nightly/7")
    assert due.reason == (
        "version 7 of nightly, the champion, is 24.1 hours old; this retraining starts from its weights"
    )
    assert plan_for(monkeypatch, 0.0, start="scratch").source is None


def test_the_weights_of_another_algorithm_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"was trained by dqn, and ppo can't start from its weights; .*scratch"):
        plan_for(monkeypatch, 5.0, "dqn", start="champion")
    assert plan_for(monkeypatch, 5.0, "dqn", start="scratch").due
