"""Successive halving and population-based training from the first step to the last, with killed drivers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.runs.metadata import read_metadata
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.running import run_sweep
from rl_training.sweeps.study import driver
from rl_training.sweeps.sweep_result import SweepResult
from rl_training.sweeps.trial_settings import make_trial_config
from tests.sweep_runs import InProcessEngine, list_table
from tests.sweep_segments import PPO, read_metrics
from tests.waiting import wait_for

COMMON: dict[str, Any] = {
    "name": "small",
    "config": {**PPO, "checkpoint": {"every": 50, "keep_last": 1}},
    "space": {"learning_rate": {"log_range": [1e-4, 1e-1]}, "gamma": {"range": [0.9, 0.99]}},
    "trials": 4,
    "parallel": 3,
    "confirmation": {"points": 0},
}
HALVING = {**COMMON, "method": {"name": "halving", "eta": 2, "rungs": 3}}
POPULATION = {**COMMON, "method": {"name": "population", "interval": 128}}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(driver, "LONGEST_PAUSE", 0.0)


def run(settings: dict[str, Any], engine: InProcessEngine) -> SweepResult:
    """Runs an untracked sweep in this process."""
    return run_sweep(load_sweep(settings), engine, track=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """The result of a population that nothing interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        return run(POPULATION, InProcessEngine())


def list_lineages(result: SweepResult) -> list[list[tuple[int, int, dict[str, Any]]]]:
    """Returns the runs from which each member descends, without their identities, which differ between sweeps."""
    return [
        [(each["trial"], each["num_timesteps"], dict(each["params"])) for run in trial.runs for each in run.lineage]
        for trial in result.search
    ]


@pytest.mark.slow
def test_a_survivor_of_halving_equals_the_same_settings_without_a_pause() -> None:
    sweep = load_sweep(HALVING)
    engine = InProcessEngine()
    result = run_sweep(sweep, engine, track=False)
    assert sorted(trial.num_timesteps for trial in result.search) == [128, 128, 256, 512]
    assert [segment.until for segment in engine.segments] == [128] * 4 + [256] * 2 + [512]
    for trial in result.search:
        alone = rl_training.train(make_trial_config(sweep, trial.params, 0), track=False, progress=False)
        (record,) = trial.runs
        metrics = read_metrics(record.run_dir)
        assert metrics == [point for point in read_metrics(alone.run_dir) if point[0] <= record.num_timesteps]
        if trial.state == "complete":
            assert (record.policy_sha256, record.held_out) == (alone.policy_sha256, alone.evaluation.return_mean)


@pytest.mark.slow
def test_a_population_whose_driver_dies_after_each_run_ends_with_the_same_table(
    undisturbed: SweepResult,
) -> None:
    trained: list[tuple[str, int]] = []
    for _ in range(100):
        engine = InProcessEngine(None, RuntimeError("killed"))
        try:
            result = run(POPULATION, engine)
        except RuntimeError:
            trained += [(segment.key, segment.until) for segment in engine.segments[:1]]
        else:
            break
    trained += [(segment.key, segment.until) for segment in engine.segments]
    assert list_table(result) == list_table(undisturbed)
    assert list_lineages(result) == list_lineages(undisturbed)
    assert len(trained) == len(set(trained)) == 4 * 4
    assert any(list_lineages(result))
    for trial in result.search:
        for record in trial.runs:
            forked_from = read_metadata(Path(record.run_dir))["forked_from"]
            assert (forked_from or {}).get("lineage", []) == [dict(each) for each in record.lineage]


@pytest.mark.slow
def test_a_population_that_is_killed_when_forks_begin_ends_with_the_same_table(
    undisturbed: SweepResult, tmp_path: Path
) -> None:
    runs = tmp_path / "home" / "runs"
    program = f"import rl_training; rl_training.sweep({POPULATION!r}, track=False)"
    for moment in ("sweep-*-g1/metadata.json", "sweep-*-g1/checkpoints/step_*"):
        sweep = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        wait_for(lambda moment=moment, sweep=sweep: any(runs.glob(moment)) or sweep.poll() is not None)
        os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
    result = run(POPULATION, InProcessEngine())
    assert list_table(result) == list_table(undisturbed)
    assert json.dumps(list_lineages(result)) == json.dumps(list_lineages(undisturbed))
