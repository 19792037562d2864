"""The logic of the soak test: strikes on a real run in real processes, and a comparison that finds differences."""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.harness import make_environment
from benchmarks.resume.run_comparison import compare_points, compare_values, find_differences, read_points
from benchmarks.resume.strikes import CLOSED_PIPE, HANGUP, KILL, KINDS, TERM, Strike, draw_strikes
from benchmarks.resume.struck_run import StruckRun, find_stubs
from rl_training.api import train_and_resume
from rl_training.api.progress_display import ProgressLines
from rl_training.experiment.loading import load_config

SETTINGS: dict[str, Any] = {
    "total_timesteps": 8_192,
    "logging": {"every": 256},
    "evaluation": {"every": 2_048, "episodes": 3, "final_episodes": 3, "video": False},
    "checkpoint": {"every": 512},
}
FLAGS = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def train(run_dir: Path, **changed: Any) -> Path:
    train_and_resume.train(
        load_config("ppo/cartpole", {**SETTINGS, **changed, "run_dir": str(run_dir)}), [ProgressLines()], track=False
    )
    return run_dir


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run")


def struck_run(home: Path, *overrides: str) -> StruckRun:
    run_dir = home / "struck"
    own = [word for override in overrides for word in ("--set", override)]
    command = ["-m", "rl_training", "train", "--config", "ppo/cartpole", *FLAGS, *own, "--no-track"]
    return StruckRun(sys.executable, [*command, "--set", f"run_dir={run_dir}"], run_dir, home, make_environment(home))


@pytest.mark.slow
def test_a_run_that_is_killed_and_stopped_equals_the_undisturbed_run(whole: Path, tmp_path: Path) -> None:
    run = struck_run(tmp_path)
    run.run_dir.mkdir()
    (run.run_dir / "config.yaml").touch()  # as a kill before the first checkpoint leaves it: refused, and started again
    strikes = [(KILL, 1_500), (CLOSED_PIPE, 2_500), (HANGUP, 3_500), (CLOSED_PIPE, 5_000)]
    result = run.run([Strike(kind, "training", step, 0.03) for kind, step in strikes])
    assert result["faults"] == []
    assert [result[kind] for kind in KINDS] == [1, 0, 1, 2]
    assert result["exit_codes"] == {"-9": 1, "75": 1}
    assert (result["starts"], result["resumes"], result["refused_resumes"]) == (1, 3, 1)
    (refusal,) = result["refusals"]
    assert refusal.startswith("error: RUN_DIR holds a run that ended before its first checkpoint; ")
    killed, _, stopped, _ = result["strikes"]
    assert killed["checkpoint_step"] >= 1_024
    assert stopped["checkpoint_step"] >= stopped["recorded_step"] >= 3_500
    assert 0 <= stopped["seconds_to_checkpoint"] <= stopped["seconds_to_exit"] < 25
    assert {strike["phase"] for strike in result["strikes"]} <= {"collection", "update", "evaluation", "saving"}
    assert find_differences(whole, run.run_dir) == []


@pytest.mark.slow
def test_a_killed_run_of_native_environments_equals_the_undisturbed_run(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole", vectorization="native")
    run = struck_run(tmp_path, "vectorization=native")
    result = run.run([Strike(KILL, "training", step, 0.03) for step in (2_500, 5_000)])
    assert result["faults"] == []
    assert result["exit_codes"] == {"-9": 2}
    assert (result["starts"], result["resumes"]) == (1, 2)
    assert find_differences(expected, run.run_dir) == []


@pytest.mark.parametrize(("found_step", "faults"), [(1_280, 1), (1_536, 0)])
def test_what_a_killed_process_trained_beyond_its_checkpoint_is_no_fault_of_the_next(
    found_step: int, faults: int, tmp_path: Path
) -> None:
    run = struck_run(tmp_path)
    run.run_dir.mkdir()
    (run.run_dir / "metrics.jsonl").write_text('{"step": 1536}\n')
    record = {"kind": TERM, "phase": "update", "exit_code": 75, "checkpoint_step": 1_408}
    record |= {"seconds_to_exit": 0.1, "seconds_to_checkpoint": 0.0}
    run._check(record, True, SimpleNamespace(found_step=found_step))  # type: ignore[arg-type]
    assert len(run.faults) == faults


def test_strikes_are_drawn_from_the_seed_and_spread_over_the_run() -> None:
    counts = {KILL: 20, TERM: 5, HANGUP: 5, CLOSED_PIPE: 10}
    strikes = draw_strikes(40_000, counts, 7)
    assert strikes == draw_strikes(40_000, counts, 7) != draw_strikes(40_000, counts, 8)
    assert Counter(strike.kind for strike in strikes) == counts
    places = [strike.place for strike in strikes]
    assert (places[0], places[-1], places.count("start-up")) == ("before the first checkpoint", "end", 5)
    assert all(i * 1_000 <= strike.step < (i + 1) * 1_000 for i, strike in enumerate(strikes[:-1]))
    assert strikes[-1].step == 40_000


def edited(whole: Path, tmp_path: Path, name: str, old: str, new: str) -> list[str]:
    """Compares a run with a copy that has `new` in place of the only `old` in one of its files."""
    copy = shutil.copytree(whole, tmp_path / "copy")
    text = (copy / name).read_text()
    assert text.count(old) == 1
    (copy / name).write_text(text.replace(old, new))
    return find_differences(whole, copy)


def test_a_metric_that_differs_is_found(whole: Path, tmp_path: Path) -> None:
    value = next(value for key, step, value in read_points(whole) if (key, step) == ("train/value_loss", 1_280))
    other = float(np.nextafter(value, 0))
    expected = [
        f"metrics: only the expected run has train/value_loss = {value!r} at step 1280",
        f"metrics: only the actual run has train/value_loss = {other!r} at step 1280",
    ]
    assert edited(whole, tmp_path, "metrics.jsonl", repr(value), repr(other)) == expected


def test_points_that_are_missing_or_there_twice_are_found_and_those_of_time_are_not() -> None:
    points = [("loss", 1, 0.5), ("loss", 2, 0.25), ("time/wall_seconds", 2, 1.0)]
    assert compare_points(points, [("time/wall_seconds", 2, 3.0), *points[:2]]) == []
    assert compare_points(points, points[1:]) == ["metrics: only the expected run has loss = 0.5 at step 1"]
    assert compare_points(points, [*points, points[0]]) == ["metrics: loss at step 1 is in the actual run twice"]


def test_an_evaluation_that_differs_is_found(whole: Path, tmp_path: Path) -> None:
    best = json.loads((whole / "checkpoints/best.json").read_text())["return_mean"]
    found = edited(whole, tmp_path, "checkpoints/best.json", f'"return_mean": {best}', '"return_mean": 1.0')
    assert found == [f"evaluations/best.json/return_mean is {best} in the expected run and 1.0 in the actual one"]


def test_another_final_state_is_found(whole: Path, tmp_path: Path) -> None:
    found = "\n".join(find_differences(whole, train(tmp_path / "run", seed=1, total_timesteps=512)))
    assert "final state/policy_sha256 is " in found
    assert "final state/policy/weights/mlps.weights.0 differs in " in found


@pytest.mark.parametrize(
    ("expected", "actual", "line"),
    [
        ({"a": [1.0, float("nan"), None]}, {"a": [1.0, float("nan"), None]}, None),
        (torch.ones(3), torch.ones(3), None),
        (torch.ones(3), torch.tensor([1.0, np.nextafter(np.float32(1), 2), 1.0]), "x differs in 1 of 3 places"),
        (np.zeros(1), -np.zeros(1), "x differs in 0 of 1 places"),  # equal as numbers, and not in their bits
        (
            np.zeros(2),
            np.zeros(2, np.float32),
            "x is [2] float64 in the expected run and [2] float32 in the actual one",
        ),
        ({"a": 1}, {"a": 1, "b": 2}, "x/b is only in the actual run"),
        ({"a": 1}, {"a": 1.0}, "x/a is 1 in the expected run and 1.0 in the actual one"),
        ([1, 2], [1], "x has 2 entries in the expected run and 1 in the actual one"),
        (torch.ones(1), None, "x is tensor([1.]) in the expected run and None in the actual one"),
    ],
)
def test_values_are_compared_bit_for_bit(expected: Any, actual: Any, line: str | None) -> None:
    assert list(compare_values(expected, actual, "x")) == ([] if line is None else [line])


def test_what_a_save_leaves_behind_is_found(whole: Path, tmp_path: Path) -> None:
    assert find_stubs(whole) == []
    copy = shutil.copytree(whole, tmp_path / "copy")
    (copy / "checkpoints/.tmp-7-step_000000000512").mkdir()
    (copy / "checkpoints/damaged-step_000000000512").mkdir()
    (copy / "replay").mkdir()
    (copy / "replay/0123.pt").touch()
    assert find_stubs(copy) == [
        "checkpoints/.tmp-7-step_000000000512",
        "checkpoints/damaged-step_000000000512",
        "replay/0123.pt",
    ]
