"""The watch over the health of trainings: runs made to go bad, resumes, and where warnings are shown."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from bad_runs import BAD, DQN, PPO, make
from scripted_envs import StopsAt

from rl_training.api.markdown_report import format_training_report
from rl_training.api.summary import format_summary
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_to_resume
from rl_training.runs.evaluation_result import EvaluationResult
from rl_training.runs.health_warnings import HealthWarning
from rl_training.runs.train_result import TrainResult
from rl_training.runtime.checkpoint import find_checkpoint, load_trainer_state
from rl_training.tracking.metric_log import MetricLog

MANAGER = DefaultExperimentManager()
OFF = {"every": 100, "health_warnings": False}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def train(trainer: Any) -> TrainResult:
    trainer.callbacks.append(MetricLog(trainer.run.run_dir))
    result: TrainResult = trainer.train()
    return result


def recorded(run_dir: Path) -> dict[str, Any] | None:
    """Returns the warnings in a run's `metadata.json` by kind; None if it has no list of them."""
    warnings = json.loads((run_dir / "metadata.json").read_text()).get("health")
    return None if warnings is None else {warning["kind"]: warning for warning in warnings}


def metrics(run_dir: Path) -> list[tuple[int, str, float]]:
    """Returns the metrics of health in the run's file, in order."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [
        (line["step"], *item) for line in lines for item in line["metrics"].items() if item[0].startswith("health/")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fault", BAD)
def test_a_training_made_to_go_bad_is_noticed(fault, caplog):
    kind, make_trainer = BAD[fault]
    result = train(make_trainer())
    warning = recorded(result.run_dir)[kind]
    assert 0 < warning["since"] < warning["step"] <= result.num_timesteps
    assert (warning["step"], f"health/{kind}", 1.0) in metrics(result.run_dir)
    assert sum(f"training has gone bad ({kind})" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("settings", [PPO, DQN], ids=["ppo", "dqn"])
def test_a_healthy_training_leaves_no_trace(settings, caplog):
    result = train(make(settings, total_timesteps=1_000, learning_rate=0.003))
    assert recorded(result.run_dir) is None
    assert metrics(result.run_dir) == []
    assert not any("gone bad" in message for message in caplog.messages)


@pytest.mark.parametrize("settings", [PPO, DQN], ids=["ppo", "dqn"])
def test_the_watch_changes_no_policy_and_no_metric(settings):
    def measure(**changed: Any) -> tuple[str, list[Any]]:
        run_dir = train(make(settings, total_timesteps=600, **changed)).run_dir
        lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        kept = [[line["step"], {k: v for k, v in line["metrics"].items() if k[:5] != "time/"}] for line in lines]
        return find_checkpoint(run_dir).policy_sha256, kept

    assert measure() == measure(logging=OFF)


def test_the_watch_can_be_turned_off():
    result = train(make(PPO, env_id="bad_runs:Barren-v0", total_timesteps=1_000, logging=OFF))
    assert recorded(result.run_dir) is None
    assert "health" not in load_trainer_state(find_checkpoint(result.run_dir))["callbacks"]


def test_a_resume_neither_repeats_a_warning_nor_forgets_it(caplog):
    whole = train(make(PPO, env_id="bad_runs:Barren-v0", total_timesteps=1_000))
    assert [(name, value) for _, name, value in metrics(whole.run_dir)] == [("health/returns_never_differ", 1.0)]
    first = make(PPO, StopsAt(600), env_id="bad_runs:Barren-v0", total_timesteps=1_000)
    stopped = train(first)
    assert list(recorded(stopped.run_dir)) == ["returns_never_differ"]
    caplog.clear()
    resumed = train(MANAGER.resume(stopped.run_dir))
    assert not any("gone bad" in message for message in caplog.messages)
    assert recorded(resumed.run_dir) == recorded(whole.run_dir)
    assert metrics(resumed.run_dir) == metrics(whole.run_dir)
    states = [load_trainer_state(find_checkpoint(each.run_dir))["callbacks"]["health"] for each in (whole, resumed)]
    assert states[0]["warnings"] == states[1]["warnings"]
    assert states[0]["history"]["evaluations"].tolist() == states[1]["history"]["evaluations"].tolist()


def test_a_resume_before_the_warning_comes_to_the_same_warning():
    whole = train(make(PPO, env_id="bad_runs:Barren-v0", total_timesteps=1_000))
    stopped = train(make(PPO, StopsAt(200), env_id="bad_runs:Barren-v0", total_timesteps=1_000))
    assert recorded(stopped.run_dir) is None
    assert recorded(train(MANAGER.resume(stopped.run_dir)).run_dir) == recorded(whole.run_dir)


def test_a_checkpoint_without_the_watch_is_resumed_with_it():
    stopped = train(make(PPO, StopsAt(200), env_id="bad_runs:Barren-v0", total_timesteps=1_000, logging=OFF))
    checkpoint = find_checkpoint(stopped.run_dir)
    config = config_to_resume(checkpoint, {"logging.health_warnings": True})
    resumed = train(MANAGER.setup(config, (), checkpoint=checkpoint))
    assert list(recorded(resumed.run_dir)) == ["returns_never_differ"]


def test_a_warning_that_no_longer_holds_is_withdrawn(caplog):
    caplog.set_level(logging.INFO, "rl_training")
    trainer = make(PPO)  # 4,000 steps
    run_dir, state = trainer.run.run_dir, trainer.state
    trainer.callbacks.append(MetricLog(run_dir))
    means = [0.0, 9.0, 9.0, 2.0, 2.0, 2.0, 2.0, 9.0]
    noticed: list[list[str] | None] = []
    for i, mean in enumerate(means, 1):
        state.num_timesteps, state.evaluation = 400 * i, EvaluationResult((1, 2), (mean, mean), (10, 10))
        state.metrics = state.evaluation.metrics("eval")
        trainer.callbacks.call("on_eval_end", state)
        warnings = recorded(run_dir)
        noticed.append(None if warnings is None else list(warnings))
    trainer.discard()
    assert noticed == [None] * 6 + [["evaluation_fell"], []]
    assert metrics(run_dir) == [(2_800, "health/evaluation_fell", 1.0), (3_200, "health/evaluation_fell", 0.0)]
    assert caplog.messages[-2].startswith("training has gone bad (evaluation_fell) at step 2,800: the mean ")
    assert caplog.messages[-1] == "training is well again at step 3,200: evaluation_fell no longer holds"


WARNING = HealthWarning("q_values_diverged", 300, 500, "Q-values have grown from 1 to 900", "a lower tau")
TEXT = "Q-values have grown from 1 to 900, since step 300; what usually helps: a lower tau"


def test_the_summary_and_the_report_show_the_warnings():
    summary: dict[str, Any] = {
        "stop_reason": "completed",
        "num_timesteps": 1_000,
        "steps_per_second": 10.0,
        "inexact": [],
        "evaluation": None,
        "promotion": None,
        "run_dir": "/runs/a",
        "checkpoint": "/runs/a/c",
        "best_checkpoint": "/runs/a/c",
        "run_id": None,
        "ui_command": None,
        "unsent": "",
        "algo": "sac",
        "env_id": "X-v0",
        "warnings": [],
        "policy_sha256": "0",
        "best_policy_sha256": "0",
    }
    assert not any("what usually helps" in line for line in format_summary(summary))
    assert f"warning: {TEXT}" in format_summary({**summary, "health": [WARNING.to_dict()]})
    assert f"| training warned | {TEXT} |" in format_training_report({**summary, "health": [WARNING.to_dict()]})
