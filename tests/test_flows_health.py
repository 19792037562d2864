"""A complete train-flow whose training goes bad: where the warning shows, and that a healthy one shows none."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from flow_records import TINY, artifacts

from rl_training.flows.train import train_flow
from rl_training.runtime.health.advice import ADVICE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flow_home")]

SETTINGS: dict[str, Any] = {
    **TINY,
    "total_timesteps": 1_000,
    "logging": {"every": 100},
    "experiment": "health",
    "promotion": {"enabled": False},
}


def run_flow(caplog: pytest.LogCaptureFixture, **overrides: Any) -> tuple[dict[str, Any], str, list[str]]:
    """Returns the summary of a flow run, its report, and the warnings about training in its log."""
    with caplog.at_level(logging.INFO, "rl_training"):
        state = train_flow({**SETTINGS, **overrides}, return_state=True)
    report = artifacts(state.state_details.flow_run_id, "markdown")["training-report"]
    return state.result(), report, [line for line in caplog.messages if "training has gone bad" in line]


def test_a_flow_whose_rewards_never_differ_warns_in_its_log_its_report_and_its_mlflow_run(
    caplog: pytest.LogCaptureFixture, flow_client: Any
) -> None:
    summary, report, lines = run_flow(caplog, env_id="bad_runs:Barren-v0")
    (warning,) = summary["health"]
    # Points are 100 steps apart, so the first two that are a third of 1,000 steps apart are those at 100 and 500. Both
    # environments have ended an episode each ten steps by then.
    seen, advice = "the returns of all 50 training episodes are 0", ADVICE["returns_never_differ"]["ppo"]
    assert warning == {"kind": "returns_never_differ", "since": 100, "step": 500, "seen": seen, "advice": advice}
    text = f"{seen}, since step 100; what usually helps: {advice}"
    assert lines == [f"training has gone bad (returns_never_differ) at step 500: {text}"]
    assert f"| training warned | {text} |" in report.splitlines()
    run = flow_client.get_run(summary["run_id"])
    assert run.data.tags["health"] == f"returns_never_differ: {text}"
    assert f"Training has gone bad:\n\n- returns_never_differ: {text}" in run.data.tags["mlflow.note.content"]
    points = flow_client.get_metric_history(summary["run_id"], "health/returns_never_differ")
    assert [(point.step, point.value) for point in points] == [(500, 1.0)]


def test_a_flow_that_learns_warns_nowhere(caplog: pytest.LogCaptureFixture, flow_client: Any) -> None:
    summary, report, lines = run_flow(caplog)
    assert (summary["health"], lines) == ([], [])
    assert "training warned" not in report
    run = flow_client.get_run(summary["run_id"])
    assert "health" not in run.data.tags
    assert [name for name in run.data.metrics if name.startswith("health/")] == []
    assert "gone bad" not in run.data.tags["mlflow.note.content"]
