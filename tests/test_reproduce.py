"""`reproduce` trains a run again and compares it with the original; a run that it can't train again is refused."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import RunSummary, reproduce, train
from rl_training.api.reproduction.comparison import compare_metrics
from rl_training.cli.app import run as run_command
from rl_training.errors import UserError
from rl_training.run_layout import METADATA, METRICS
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.run_utils import open_training_run, update_metadata
from rl_training.runtime.trainer_factory import CALLBACK_OBJECTS
from rl_training.sweeps.trial_callback import TrialCallback

EVALUATION = {"every": 64, "episodes": 1, "final_episodes": 2, "video": False}
SMALL: dict[str, Any] = {
    "network": {"hidden": [8]},
    "evaluation": EVALUATION,
    "logging": {"every": 32},
    "checkpoint": {"every": 64},
    "total_timesteps": 192,
    "seed": 4,
}
OFF: dict[str, Any] = {"learning_starts": 32, "batch_size": 16, "buffer_size": 256, **SMALL}
PPO: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "num_envs": 2,
    "rollout_steps": 16,
    "batch_size": 32,
    "epochs": 2,
    **SMALL,
}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": PPO,
    "dqn": {"algo": "dqn", "env_id": "CartPole-v1", **OFF},
    "sac": {"algo": "sac", "env_id": "Pendulum-v1", **OFF},
    "td3": {"algo": "td3", "env_id": "Pendulum-v1", **OFF},
    "tqc": {"algo": "tqc", "env_id": "Pendulum-v1", **OFF},
}


class StopsAt(Callback):
    """Stops the run at a step, as a signal does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: TrainerState) -> None:
        if state.num_timesteps == self.step:
            state.request_stop()


def trained(**fields: Any) -> RunSummary:
    return train({**PPO, **fields}, track=False, progress=False)


@pytest.mark.parametrize("algo", RUNS)
def test_a_run_is_reproduced_to_the_last_bit(algo: str) -> None:
    original = train(RUNS[algo], track=False, progress=False)
    before = {path: path.read_bytes() for path in original.run_dir.rglob("*") if path.is_file()}
    result = reproduce(original.run_uid, track=False, progress=False)
    assert result.equal
    assert result.policy.original == result.policy.reproduction == original.policy_sha256
    assert (result.policy.step, result.metrics.first_difference, result.differences) == (192, None, [])
    assert result.metrics.compared > 20
    assert result.summary.run_dir != original.run_dir
    assert json.loads((result.summary.run_dir / METADATA).read_text())["reproduces"] == original.run_uid
    assert {path: path.read_bytes() for path in original.run_dir.rglob("*") if path.is_file()} == before


def test_a_stopped_run_is_reproduced_up_to_its_newest_checkpoint() -> None:
    original = train(PPO, [StopsAt(80)], track=False, progress=False)
    assert original.num_timesteps == 80
    result = reproduce(original.run_dir, track=False, progress=False)
    assert result.equal
    assert result.policy.step == result.summary.num_timesteps == 80
    assert result.differences == [{"what": "callbacks given as objects", "original": ["StopsAt"], "reproduction": None}]


def test_the_callback_of_a_sweep_is_no_difference_because_it_changes_no_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = trained()
    update_metadata(open_training_run(original.run_dir), {CALLBACK_OBJECTS: [TrialCallback.__qualname__]})
    result = reproduce(original.run_dir, track=False, progress=False)
    assert (result.equal, result.differences) == (True, [])
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_differs_is_named_with_the_first_step() -> None:
    original = trained()
    lines = (original.run_dir / METRICS).read_text().splitlines()
    changed = [json.loads(line) for line in lines]
    index, name = next(
        (i, name) for i, line in enumerate(changed) for name in line["metrics"] if name.startswith("train/")
    )
    changed[index]["metrics"][name] += 1.0
    (original.run_dir / METRICS).write_text("".join(json.dumps(line) + "\n" for line in changed))
    run = open_training_run(original.run_dir)
    machine = json.loads((original.run_dir / METADATA).read_text())["machine"]
    update_metadata(run, {"machine": {**machine, "cpu_model": "Z80"}, "git": None})
    result = reproduce(original.run_dir, track=False, progress=False)
    assert (result.equal, result.policy.equal, result.metrics.equal) == (False, True, False)
    first = result.metrics.first_difference
    assert first is not None
    assert (first["step"], first["name"]) == (changed[index]["step"], name)
    assert first["original"] == pytest.approx(first["reproduction"] + 1.0)
    assert {"what": "CPU", "original": "Z80", "reproduction": machine["cpu_model"]} in result.differences
    assert "commit" in result.unknown or not (Path(rl_training.__file__).parents[1] / ".git").exists()


def test_the_smallest_step_and_name_is_the_first_difference() -> None:
    here = {(64, "b"): 1.0, (64, "a"): 2.0, (32, "z"): 3.0, (128, "a"): 4.0}
    there = {(64, "b"): 0.0, (64, "a"): 0.0, (32, "z"): 3.0, (32, "y"): 7.0}
    found = compare_metrics(here, there, until=64)
    assert (found.compared, found.equal) == (3, False)
    assert found.first_difference == {"step": 64, "name": "a", "original": 2.0, "reproduction": 0.0}
    assert compare_metrics({}, there, until=64).equal is None
    missing = compare_metrics(here, {}, until=32).first_difference
    assert missing == {"step": 32, "name": "z", "original": 3.0, "reproduction": None}


def test_a_stopped_reproduction_is_continued_by_the_next_call() -> None:
    original = trained()
    stopped = train({**PPO, "run_name": "again"}, [StopsAt(96)], track=False, progress=False)
    update_metadata(open_training_run(stopped.run_dir), {"reproduces": original.run_uid})
    result = reproduce(original.run_dir, track=False, progress=False)
    assert result.summary.run_dir == stopped.run_dir
    assert result.equal
    again = reproduce(original.run_dir, track=False, progress=False)
    assert again.summary.run_dir != stopped.run_dir
    assert again.equal


def test_a_run_that_its_record_does_not_describe_is_refused_before_training() -> None:
    original = trained()
    run = open_training_run(original.run_dir)
    update_metadata(run, {"forked_from": {"run_uid": "f" * 32}})
    with pytest.raises(UserError, match=f"it continues run {'f' * 32}; reproduce that one$"):
        reproduce(original.run_dir, track=False)
    entry = {"num_timesteps": 64, "fresh_episodes": [0], "changed": []}
    update_metadata(run, {"forked_from": None, "inexact": [entry]})
    with pytest.raises(UserError, match="it is not exact: resumed at step 64: the episodes of environments 0 could"):
        reproduce(original.run_dir, track=False)
    hidden = train({**PPO, "env_id": "case_envs:NeedsToken-v0", "env_kwargs": {"api_token": "let me in"}}, track=False)
    with pytest.raises(UserError, match="its settings had plain secrets, which are hidden in the record"):
        reproduce(hidden.run_dir, track=False)


def test_a_received_run_needs_permission_for_its_modules(tmp_path: Path) -> None:
    original = trained(env_id="case_envs:Plain-v0")
    received = tmp_path / "received"
    shutil.move(original.run_dir, received)
    for name in ("allowed_modules.txt",):
        (original.run_dir.parents[1] / name).unlink(missing_ok=True)
    with pytest.raises(UserError, match="case_envs"):
        reproduce(received, track=False)
    assert reproduce(received, allow_modules=["case_envs"], track=False, progress=False).equal


@pytest.mark.slow
def test_the_command_says_so_and_reads_a_run_from_mlflow(client: Any) -> None:
    original = train(PPO, progress=False)
    assert original.run_id is not None
    shutil.rmtree(original.run_dir)
    command = [sys.executable, "-m", "rl_training", "reproduce", original.run_id, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["equal"], found["policy"]["equal"], found["metrics"]["equal"]) == (True, True, True)
    assert client.get_run(found["run_id"]).data.tags["reproduces"] == original.run_uid


def test_the_exit_code_says_whether_it_is_equal(capfd: pytest.CaptureFixture[str]) -> None:
    original = trained()
    assert run_command(["reproduce", str(original.run_dir), "--no-track"]) == 0
    assert "policy at step 192: equal" in capfd.readouterr().out
    lines = (original.run_dir / METRICS).read_text().splitlines()
    first = json.loads(lines[0])
    first["metrics"] = dict.fromkeys(first["metrics"], -1.5)
    (original.run_dir / METRICS).write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    assert run_command(["reproduce", str(original.run_dir), "--no-track"]) == 1
    assert "metrics up to it: not equal" in capfd.readouterr().out
    assert run_command(["reproduce", "nowhere", "--no-track"]) == 2
