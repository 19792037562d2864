"""Runs that record successes and raw returns, and whose callbacks change the environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_curriculum import ALGORITHMS, COMMON, MANAGER

from benchmarks.resume.run_comparison import find_differences
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.tracking.metric_log import MetricLog
from tests.stop_flags import StopAfterPolls

JUDGED: dict[str, Any] = {
    **COMMON,
    "env_id": "judged_envs:NeedsStart-v0",
    "training_wrappers": [{"name": "judged_envs:Shaped", "kwargs": {"bonus": 10.0}}],
    "reset_options": {"start": 1.0},
    "metrics": {"info": ["collisions"]},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Changes(Callback):
    """Changes attributes and reset options at steps that fall before, at and after the ends of episodes."""

    def on_step(self, state: TrainerState) -> None:
        assert state.envs is not None
        step = state.num_timesteps
        assert len(state.infos) == 2
        if step % 6 == 0:
            state.envs.set_attr("drift", [step / 100, -step / 50])
        if step % 14 == 0:
            state.envs.set_attr("goal", {"at": [step, 1]})
        if step % 10 == 0:
            state.envs.set_reset_options({"start": step, "from": [step]})


def judged(algo: str, directory: Path, **fields: Any) -> Any:
    return config_from_mapping({**JUDGED, **ALGORITHMS[algo], "run_dir": str(directory), **fields})


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_resume_is_exact_wherever_callbacks_have_changed_the_environments(
    algo: str, vectorization: str, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    MANAGER.setup(judged(algo, whole), [MetricLog(whole), Changes()]).train()
    for polls in (11, 37, 60) if vectorization == "sync" else (52,):
        run_dir = tmp_path / f"stopped-{polls}"
        config = judged(algo, run_dir, vectorization=vectorization)
        stopped = MANAGER.setup(config, [MetricLog(run_dir), Changes()], stop=StopAfterPolls(polls)).train()
        assert 0 < stopped.num_timesteps < 160
        trainer = MANAGER.resume(run_dir, [MetricLog(run_dir), Changes()])
        assert trainer.inexact == []
        trainer.train()
        assert find_differences(whole, run_dir) == []


def test_a_run_records_successes_raw_returns_and_chosen_numbers(tmp_path: Path) -> None:
    result = MANAGER.setup(judged("ppo", tmp_path / "run"), [MetricLog(tmp_path / "run")]).train()
    metrics = result.metrics
    assert metrics["rollout/episode_return_mean"] == metrics["rollout/raw_return_mean"] + 40.0  # 4 steps of 10 more
    assert metrics["rollout/info/collisions"] == 4.0 - metrics["rollout/raw_return_mean"]  # of 4 steps, the others
    assert 0.0 < metrics["rollout/success_rate"] < 1.0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("rollout/success_rate" in line["metrics"] for line in lines if "metrics" in line)


def test_a_run_without_anything_of_this_has_no_new_metric(tmp_path: Path) -> None:
    config = config_from_mapping({**COMMON, **ALGORITHMS["ppo"], "env_id": "case_envs:Plain-v0"})
    metrics = MANAGER.setup(config).train().metrics
    assert sorted(name for name in metrics if name.startswith("rollout/")) == [
        "rollout/episode_length_mean",
        "rollout/episode_return_mean",
        "rollout/episodes",
    ]


def test_a_method_that_was_called_makes_later_resumes_inexact(tmp_path: Path) -> None:
    class Steers(Callback):
        def on_collect_end(self, state: TrainerState) -> None:
            assert state.envs is not None
            state.envs.call("steer", 0.5)

    run_dir = tmp_path / "run"
    MANAGER.setup(judged("ppo", run_dir), [Steers()], stop=StopAfterPolls(60)).train()
    trainer = MANAGER.resume(run_dir)
    assert "call: steer" in json.dumps(trainer.inexact)
    trainer.discard()
