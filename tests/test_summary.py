"""The summary of a run in lines: the same words from every command."""

import json
import os
import signal

import pytest

from rl_training.api.summary import format_summary
from rl_training.api.train_and_resume import resume_training, train
from rl_training.config.serialization import compact_config
from rl_training.errors import AlreadyTraining
from rl_training.experiment.loading import load_config
from rl_training.runs.locks import RunLock
from rl_training.runtime.callbacks import Callback, TrainerState

EVALUATION = {"return_mean": 1234.5, "ci_low": 1000.0, "ci_high": 1469.0, "episodes": 1_000, "cut": 0}

DONE = {
    "stop_reason": "completed",
    "num_timesteps": 100_000,
    "steps_per_second": 12_345.6,
    "evaluation": EVALUATION,
    "run_dir": "/runs/a b",
    "checkpoint": "/runs/a b/checkpoints/step_000000100000",
    "run_id": "abc",
    "ui_command": "http://h:1/#/experiments/3/runs/abc",
    "inexact": [],
    "unsent": "",
}


def test_finished_run():
    assert format_summary(DONE) == [
        "done at 100,000 steps, 12,346 steps/s",
        "mean return 1,234.50 (95 % interval 1,000.00 to 1,469.00) over 1,000 held-out episodes",
        "run directory: /runs/a b",
        "checkpoint: /runs/a b/checkpoints/step_000000100000",
        "MLflow run abc: http://h:1/#/experiments/3/runs/abc",
    ]


def test_flow_adds_what_the_gate_decided_and_the_best_checkpoint():
    promotion = {"verdict": "HOLD", "model": "m", "version": "2", "alias": None, "reasons": ["no better"]}
    best = "/runs/a b/checkpoints/step_000000090000"
    lines = format_summary({**DONE, "promotion": promotion, "best_checkpoint": best})
    assert lines[2:4] == ["HOLD: registered model m, version 2", "  no better"]
    assert f"best checkpoint: {best}" in lines


def test_a_stopped_run_says_how_to_resume():
    stopped = {**DONE, "stop_reason": "signal", "evaluation": None, "steps_per_second": None, "run_id": None}
    lines = format_summary({**stopped, "unsent": "offline"}, resume="flow resume")
    assert lines == [
        "stopped by a signal at 100,000 steps",
        "resume with: rl-training flow resume '/runs/a b'",
        "run directory: /runs/a b",
        "checkpoint: /runs/a b/checkpoints/step_000000100000",
        "offline",
    ]


def test_resumes_that_were_not_exact_are_said():
    inexact = [
        {"num_timesteps": 2_048, "fresh_episodes": [0, 3], "changed": []},
        {"num_timesteps": 9_000, "fresh_episodes": [], "changed": ["threads: 1 -> 2", "torch: 2.9.0 -> 2.9.1"]},
    ]
    assert format_summary({**DONE, "inexact": inexact})[1:3] == [
        "not exact: resumed at step 2,048: the episodes of environments 0, 3 could not be restored, so "
        "new ones began (the environment is not deterministic, or native)",
        "not exact: resumed at step 9,000: sums may differ from here on (threads: 1 -> 2, torch: 2.9.0 -> 2.9.1)",
    ]


def test_one_episode_has_no_interval_and_cut_episodes_are_said():
    one = {**EVALUATION, "ci_low": None, "ci_high": None, "episodes": 1, "cut": 1}
    line = format_summary({**DONE, "evaluation": one})[1]
    assert line == "mean return 1,234.50 over 1 held-out episode, of which 1 cut at evaluation.max_episode_steps"


def test_settings_on_few_lines_hide_secrets_and_have_every_section():
    config = load_config("ppo/cartpole", {"seed": 3, "env_kwargs": {"api_token": "s3cret"}})
    lines = compact_config(config).splitlines()
    assert len(lines) < 20
    assert all(len(line) <= 120 for line in lines[:4])
    assert lines[0].startswith("algo: ppo, env_id: CartPole-v1, ")
    assert "seed: 3, " in " ".join(lines)
    assert any(line.startswith("network: {hidden: [64, 64], activation: tanh, ") for line in lines)
    assert "env_kwargs: {api_token: '***'}" in lines


class Signals(Callback):
    """Has the system stop the run at its first update."""

    def on_update_end(self, state: TrainerState) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("options", "words"), [({"track": False}, "--no-track"), ({"offline": True}, "--offline")])
def test_a_tracked_run_stays_tracked_when_it_is_resumed(options, words, tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    config = load_config("ppo/cartpole", {"total_timesteps": 64, "num_envs": 1, "rollout_steps": 32, "batch_size": 32})
    summary = train(config, [Signals()], **options)
    assert summary.lines()[1] == f"resume with: rl-training resume {words} {summary.run_dir}"


def test_a_run_that_is_being_trained_is_refused_before_its_record_is_touched(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    config = load_config("ppo/cartpole", {"total_timesteps": 64, "num_envs": 1, "rollout_steps": 32, "batch_size": 32})
    run_dir = train(config, [Signals()], offline=True).run_dir
    record = (run_dir / "tracking.json").read_bytes()
    with RunLock(run_dir), pytest.raises(AlreadyTraining, match=f"the run in {run_dir} is training already"):
        resume_training(run_dir, {"total_timesteps": 64}, offline=True)  # no other settings, so the same run
    assert (run_dir / "tracking.json").read_bytes() == record
    with RunLock(run_dir), pytest.raises(AlreadyTraining):
        resume_training(run_dir, track=False)
    assert resume_training(run_dir, offline=True).num_timesteps == 64


def test_a_tracked_run_that_is_resumed_without_tracking_has_its_end_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    config = load_config("ppo/cartpole", {"total_timesteps": 64, "num_envs": 1, "rollout_steps": 32, "batch_size": 32})
    stopped = train(config, [Signals()], offline=True)
    assert json.loads((stopped.run_dir / "status.json").read_text())["status"] == "KILLED"
    done = resume_training(stopped.run_dir, track=False)
    assert json.loads((stopped.run_dir / "status.json").read_text())["status"] == "FINISHED"
    assert (done.run_uid, done.run_id) == (stopped.run_uid, None)
    assert done.unsent == f"offline: `rl-training sync {stopped.run_dir}` sends the run to MLflow"
