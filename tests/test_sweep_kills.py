"""Sweeps as commands: a driver or a trial is killed, and the final table is that of an undisturbed sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.sweeps.struck_sweep import Strike, StruckSweep, list_table
from tests.sweep_runs import GRID, RANDOM
from tests.sweep_segments import PPO
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("settings", [GRID, RANDOM], ids=["grid", "random"])
def test_a_sweep_that_is_killed_at_several_moments_ends_with_the_same_table(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(settings))
    undisturbed = StruckSweep(file, tmp_path / "undisturbed", options=["--no-track"])
    expected = list_table(undisturbed.run([]))
    assert undisturbed.starts == 1
    struck = StruckSweep(file, tmp_path / "struck", options=["--no-track"])
    strikes = [Strike("trial", 0.0), Strike("driver", 1.0), Strike("trial", 0.0), Strike("driver", 4.0)]
    assert list_table(struck.run(strikes)) == expected
    assert struck.struck[:3] == ["trial", "driver", "trial"]
    assert len({path.name for path in (tmp_path / "struck" / "runs").glob("sweep-*")}) == len(
        list((tmp_path / "undisturbed" / "runs").glob("sweep-*"))
    )


def test_a_signal_saves_the_running_trials_and_the_same_command_continues_them(tmp_path: Path) -> None:
    rarely = {"evaluation": {**PPO["evaluation"], "every": 10**9}, "checkpoint": {"every": 10**9}}
    settings = {**GRID, "config": {**PPO, **rarely, "total_timesteps": 40_000}, "space": {}}
    settings["confirmation"] = {"points": 0}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(settings))
    environment = {**os.environ, "RL_TRAINING_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "rl_training", "sweep", str(file), "--no-track"]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = tmp_path / "home" / "runs"
    wait_for(lambda: any(path.stat().st_size for path in runs.glob("sweep-*/metrics.jsonl")))
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate()
    assert first.returncode == 75, err
    assert f"to continue: rl-training sweep {file} --no-track" in out.replace("python -m rl_training", "rl-training")
    (run_dir,) = runs.glob("sweep-*")
    steps = [int(path.name.removeprefix("step_")) for path in run_dir.glob("checkpoints/step_*")]
    assert max(steps) > 0  # saved by the signal, because no checkpoint was due
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert trial["runs"][0]["num_timesteps"] == 40_000
    assert trial["runs"][0]["run_dir"] == str(run_dir)


def test_train_with_seeds_prints_a_summary_of_each_run_and_the_aggregate(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump({**PPO, "seed": 7}))
    environment = {**os.environ, "RL_TRAINING_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "rl_training", "train", "--config", str(file), "--no-track", "--json"]
    many = subprocess.run([*command, "--seeds", "2"], env=environment, capture_output=True, text=True, check=False)
    assert many.returncode == 0, many.stderr
    values = json.loads(many.stdout)
    assert set(values) == {"runs", "aggregate"}
    one = subprocess.run([*command, "--seed", "8"], env=environment, capture_output=True, text=True, check=False)
    alone = json.loads(one.stdout)
    assert [run["seed"] for run in values["runs"]] == [7, 8]
    assert set(values["runs"][1]) == {"seed", *alone}
    assert values["runs"][1]["policy_sha256"] == alone["policy_sha256"]
    assert values["runs"][1]["evaluation"]["return_mean"] == alone["evaluation"]["return_mean"]
    means = [run["evaluation"]["return_mean"] for run in values["runs"]]
    assert values["aggregate"]["mean"] == sum(means) / 2
