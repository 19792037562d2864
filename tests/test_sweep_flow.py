"""`sweep-flow` and `trial-flow` on a real Prefect server: tasks, records, what a stop leaves, and how it continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flow_records import artifacts, task_states

from rl_training import __version__
from rl_training.flows.sweep import sweep_flow
from rl_training.flows.train import train_flow
from rl_training.flows.trial import trial_flow
from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.engines.local import LocalEngine
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import from_json, to_json
from tests.sweep_segments import PPO, make_segment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flow_home")]

SWEEP: dict[str, Any] = {
    "name": "small",
    "config": PPO,
    "space": {"learning_rate": {"choice": [0.01, 0.001]}},
    "method": "grid",
    "parallel": 2,
    "confirmation": {"points": 0},
}


def test_a_sweep_runs_each_trial_as_a_task_and_once_more_only_if_it_is_new(flow_home: Path, flow_client: Any) -> None:
    state = sweep_flow(SWEEP, {"seeds": 1}, return_state=True)
    result = state.result()
    assert result["finished"]
    assert [trial["params"] for trial in result["trials"]] == [{"learning_rate": 0.01}, {"learning_rate": 0.001}]
    tasks = task_states(state.state_details.flow_run_id, expected=2)
    assert sorted(tasks) == [("t0000", "Completed", 1), ("t0001", "Completed", 1)]  # named by trial and seed
    (run,) = flow_client.search_runs(
        [flow_client.get_run(result["run_id"]).info.experiment_id], "tags.`rl_training.trial` = 't0001-s0'"
    )
    assert run.data.tags["mlflow.parentRunId"] == result["run_id"]
    assert run.info.status == "FINISHED"


def test_train_flow_with_seeds_returns_a_summary_of_each_run_and_the_aggregate() -> None:
    result = train_flow(PPO, {"seed": 3}, seeds=2)
    assert [run["seed"] for run in result["runs"]] == [3, 4]
    assert {run["num_timesteps"] for run in result["runs"]} == {512}
    assert result["aggregate"] is not None
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_trial_flow_leaves_the_record_that_any_engine_would(flow_home: Path) -> None:
    segment = make_segment({**PPO, "seed": 7}, seed=7)
    (_, expected) = next(LocalEngine().run([make_segment({**PPO, "seed": 7}, seed=7, trial=1)], StopFlag()))
    place = {"tracking_uri": f"sqlite:///{flow_home}/mlflow.db", "version": __version__}
    state = trial_flow(to_json(segment), **place, return_state=True)
    (stored,) = json.loads(artifacts(state.state_details.flow_run_id, "table")["trial-record"])
    record = from_json(stored, RunRecord)
    assert isinstance(expected, RunRecord)
    assert record.policy_sha256 == expected.policy_sha256
    assert record.evaluations == expected.evaluations
    assert (record.state, record.num_timesteps) == ("complete", 512)


def test_a_trial_flow_of_another_version_fails_before_it_trains(flow_home: Path) -> None:
    segment = make_segment(PPO, sweep_uid="f" * 32)
    place = {"tracking_uri": f"sqlite:///{flow_home}/mlflow.db", "version": "0.0.1"}
    state = trial_flow(to_json(segment), **place, return_state=True)
    assert state.is_failed()
    assert "the sweep was started with 0.0.1" in state.message
    assert not list((flow_home / "runs").glob("sweep-ffffffff*"))
