"""The driver of a sweep: it continues after any end of its process, and its result does not depend on that."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.cli.sweep_commands import train_seeds
from rl_training.errors import AlreadyTraining, RunFailed, UserError
from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.engines import local
from rl_training.sweeps.engines.engine import Engine, Lost
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.plan import RunRecord, Step
from rl_training.sweeps.running import describe_seeds, make_seeds_sweep, run_sweep
from rl_training.sweeps.study import driver
from rl_training.sweeps.study.database import Database
from rl_training.sweeps.study.driver import format_record
from rl_training.sweeps.study.lease import Lease
from rl_training.sweeps.study.rounds import make_outcome
from rl_training.sweeps.study.study import begin_sweep
from rl_training.sweeps.sweep_result import SweepResult
from tests.sweep_runs import GRID, RANDOM, InProcessEngine, list_table
from tests.sweep_segments import PPO

LOST = Lost("its node is gone")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(driver, "LONGEST_PAUSE", 0.0)


def run(settings: dict[str, Any], engine: Engine | None = None, **options: Any) -> SweepResult:
    """Runs an untracked sweep."""
    return run_sweep(load_sweep(settings), engine or InProcessEngine(), track=False, **options)


def make_record(state: Any, evaluations: dict[int, float]) -> RunRecord:
    """Returns the record of a run."""
    return RunRecord(0, "u", None, "/d", state, 10, evaluations, None)


@pytest.mark.parametrize("settings", [GRID, {**RANDOM, "trials": 3}], ids=["grid", "random"])
def test_a_sweep_whose_driver_dies_after_each_run_ends_with_the_same_table(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = run(settings)
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "other"))
    keys: list[str] = []
    for _ in range(100):
        engine = InProcessEngine(None, RuntimeError("killed"))
        try:
            result = run(settings, engine)
            break
        except RuntimeError:
            keys += [segment.key for segment in engine.segments[:1]]
    keys += [segment.key for segment in engine.segments]
    assert list_table(result) == list_table(undisturbed)
    assert len(keys) == len(set(keys)) == len(list_table(undisturbed))  # each run was trained once


def test_the_points_and_seeds_of_a_grid_are_those_of_the_file_and_each_run_equals_one_alone() -> None:
    table = list_table(run({**GRID, "seeds": 2, "confirmation": {"points": 0}}))
    assert [row[:2] + row[4:5] for row in table] == [
        (number, (("learning_rate", rate),), seed)
        for number, rate in enumerate([0.01, 0.001, 0.0001])
        for seed in (0, 1)
    ]
    alone = rl_training.train({**PPO, "learning_rate": 0.001, "seed": 1}, track=False, progress=False)
    assert table[3][5] == alone.policy_sha256
    assert alone.evaluation is not None
    assert table[3][6] == alone.evaluation.return_mean


def test_lost_segments_are_submitted_again_as_ones_that_may_have_begun() -> None:
    engine = InProcessEngine(LOST, None, LOST)
    result = run({**GRID, "confirmation": {"points": 0}}, engine)
    assert [(segment.key, segment.begun) for segment in engine.segments] == [
        ("t0000-s0", False),
        ("t0001-s0", False),
        ("t0000-s0", True),
        ("t0000-s0", True),
        ("t0002-s0", False),
    ]
    assert [trial.state for trial in result.search] == ["complete"] * 3


def test_a_segment_that_is_lost_five_times_ends_the_sweep_which_can_be_continued() -> None:
    settings = {**GRID, "parallel": 1, "confirmation": {"points": 0}}
    with pytest.raises(RunFailed, match=r"trial t0000-s0 was lost 5 times .*its node is gone"):
        run(settings, InProcessEngine(*[LOST] * 5))
    assert run(settings).finished


def test_a_sweep_whose_first_round_fails_ends_with_its_error() -> None:
    settings = {**GRID, "space": {"learning_rate": {"choice": [1e300, 2e300]}}}  # both make a NaN
    with pytest.raises(RunFailed, match=r"every run of the first round has failed, so the sweep ends: .+; when"):
        run(settings)
    with pytest.raises(RunFailed, match="every run of the first round has failed"):
        run(settings)


def test_a_trial_that_fails_is_in_the_table_and_the_sweep_goes_on() -> None:
    space = {"learning_rate": {"choice": [0.01, 1e300]}}  # the second one makes a NaN
    result = run({**GRID, "space": space, "confirmation": {"points": 0}})
    assert [trial.state for trial in result.search] == ["complete", "failed"]
    failed = result.search[1].runs[0]
    assert failed.error is not None
    assert "\n" not in failed.error


def test_a_stopped_sweep_says_how_to_continue_and_does() -> None:
    stop = StopFlag()

    class StoppingEngine(InProcessEngine):
        def run(self, segments: Any, stop: StopFlag) -> Any:
            for ended in super().run(segments, stop):
                yield ended
                stop.request("signal")

    first = run(GRID, StoppingEngine(), stop=stop, continue_with="rl-training sweep small.yaml")
    assert not first.finished
    assert first.continue_with == "rl-training sweep small.yaml"
    engine = InProcessEngine()
    second = run(GRID, engine)
    assert second.uid == first.uid
    assert second.finished
    assert "t0000-s0" not in [segment.key for segment in engine.segments]


def test_a_finished_sweep_or_new_begins_another_one() -> None:
    settings = {**GRID, "space": {}, "confirmation": {"points": 0}}
    first, second = run(settings), run(settings)
    assert first.uid != second.uid
    with pytest.raises(RuntimeError):
        run(settings, InProcessEngine(RuntimeError("killed")))
    third = run(settings, new=True)
    database = Database()
    sweep = load_sweep(settings)
    unfinished = begin_sweep(database, sweep.uid, sweep.name, sweep.digest)
    assert unfinished not in (first.uid, second.uid, third.uid, sweep.uid)
    database.close()


def test_a_second_driver_names_the_first_one() -> None:
    sweep, database = load_sweep(GRID), Database()
    begin_sweep(database, sweep.uid, sweep.name, sweep.digest)
    with (
        Lease(database, sweep.uid).hold(),
        pytest.raises(AlreadyTraining, match=r"run already by process \d+ on .* since"),
    ):
        run(GRID)
    database.close()


def test_the_smallest_sweep_trains_the_seeds_of_one_config_and_aggregates_them() -> None:
    config = rl_training.PPOConfig(**{**PPO, "seed": 3})
    result = run_sweep(make_seeds_sweep(config, 3), InProcessEngine(), track=False)
    values = describe_seeds(result)
    assert [value["seed"] for value in values["runs"]] == [3, 4, 5]
    returns = [value["evaluation"]["return_mean"] for value in values["runs"]]
    assert values["aggregate"]["mean"] == pytest.approx(sum(returns) / 3, abs=1e-12)
    assert values["aggregate"]["runs"] == 3
    alone = rl_training.train(config.replace(seed=4), track=False, progress=False)
    assert values["runs"][1]["policy_sha256"] == alone.policy_sha256


def test_sweeps_of_other_engines_are_refused_with_what_runs_them() -> None:
    with pytest.raises(UserError, match="engine: got ray, expected local"):
        rl_training.sweep({**GRID, "engine": "ray"})


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["complete", "complete"], "complete"),
        (["complete", "failed"], "failed"),
        (["pruned", "complete"], "complete"),
        (["pruned", "pruned", "complete"], "pruned"),
        (["paused", "paused"], "paused"),
        (["paused", "complete"], "paused"),
        (["paused", "pruned", "failed"], "failed"),
    ],
)
def test_the_state_of_a_step_follows_from_those_of_its_runs(states: list[str], expected: str) -> None:
    runs = [make_record(state, {5: 1.0, 10: 2.0 + i}) for i, state in enumerate(states)]
    outcome = make_outcome(runs)
    assert outcome.state == expected
    assert outcome.score == (None if expected == "failed" else sum(2.0 + i for i in range(len(runs))) / len(runs))


def test_a_step_with_a_run_without_evaluation_has_no_score() -> None:
    assert make_outcome([make_record("complete", {5: 1.0}), make_record("complete", {})]).score is None


def test_seeds_that_all_fail_end_with_the_error_and_otherwise_the_summaries_are_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "LocalEngine", InProcessEngine)
    config, out = rl_training.PPOConfig(**PPO), StringIO()
    assert train_seeds(config, 1, out, track=False, offline=False, json=True) == 0
    assert [run["seed"] for run in json.loads(out.getvalue())["runs"]] == [0]
    with pytest.raises(RunFailed, match="every run of the first round has failed"):
        train_seeds(config.replace(learning_rate=1e300), 1, out, track=False, offline=False, json=True)


def test_one_seed_that_fails_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfFailing(InProcessEngine):
        def run(self, segments: Any, stop: StopFlag) -> Any:
            for segment, record in super().run(segments, stop):
                failed = replace(record, state="failed", error="a NaN", summary=None, held_out=None)
                yield segment, failed if segment.seed else record

    monkeypatch.setattr(local, "LocalEngine", HalfFailing)
    out = StringIO()
    assert train_seeds(rl_training.PPOConfig(**PPO), 2, out, track=False, offline=False, json=True) == 1
    values = json.loads(out.getvalue())
    assert values["runs"][1]["error"] == "a NaN"
    assert (values["aggregate"]["runs"], values["aggregate"]["failed"]) == (1, 1)
    assert values["aggregate"]["mean"] == values["runs"][0]["evaluation"]["return_mean"]


def test_the_line_about_a_run_shows_no_control_characters() -> None:
    step = Step(3, {"env_kwargs.text": "\x1b[31mred\nline", "gamma": 0.9}, (0,), 10)
    line = format_record(step, make_record("complete", {5: 1.0}))
    assert line == "trial 3, seed 0 (env_kwargs.text=\\x1b[31mred line gamma=0.9): 1.00"


def test_a_run_of_the_confirmation_is_announced_as_one() -> None:
    ended = replace(make_record("complete", {1: 12.5}), seed=7)
    assert format_record(Step(4, {}, (7,), 1, phase="confirmation"), ended) == (
        "trial 4, seed 7 (confirmation: base config): 12.50"
    )
    assert format_record(Step(5, {"gamma": 0.9}, (7,), 1, phase="confirmation"), ended) == (
        "trial 5, seed 7 (confirmation: gamma=0.9): 12.50"
    )
    assert format_record(Step(0, {"gamma": 0.9}, (7,), 1), ended) == "trial 0, seed 7 (gamma=0.9): 12.50"
