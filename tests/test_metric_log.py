"""The metrics file: what is written, how repeated steps are compared, and which points are thinned out."""

import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import TrainerState
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.mlflow_names import flatten, make_legal_name
from rl_training.tracking.shipping.metrics_reader import Downsampler, MetricsReader


def lines(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def state_at(run_dir: Path, step: int, metrics: dict[str, float] | None = None) -> TrainerState:
    config = PPOConfig(env_id="CartPole-v1", total_timesteps=1000)
    return TrainerState(config, run_dir, "uid", StopFlag(), num_timesteps=step, metrics=metrics or {})


def test_one_line_an_event(tmp_path):
    log = MetricLog(tmp_path)
    log.on_train_start(state_at(tmp_path, 0))
    log.on_update_end(state_at(tmp_path, 8))  # between two cadences there are no metrics, and no line
    log.on_update_end(state_at(tmp_path, 16, {"train/policy_loss": 0.5, "time/steps_per_second": 100.0}))
    state = state_at(tmp_path, 16, {"eval/return_mean": 20.0})
    state.evaluation = EvaluationResult((7, 8), (10.0, 30.0), (10, 30))
    log.on_eval_end(state)
    log.on_train_end(state)
    log.log(16, {"heldout/return_mean": 25.0}, "heldout")  # after training: the file is opened again
    log.close()

    written = lines(tmp_path)
    assert [(line["event"], line["step"]) for line in written] == [("update", 16), ("eval", 16), ("heldout", 16)]
    assert written[0]["metrics"] == {"train/policy_loss": 0.5, "time/steps_per_second": 100.0}
    evaluation = json.loads((tmp_path / "artifacts/evaluations/step_000000000016.json").read_text())
    assert (evaluation["num_timesteps"], evaluation["returns"], evaluation["seeds"]) == (16, [10.0, 30.0], [7, 8])


def test_nan_and_infinity_are_left_out(tmp_path):
    log = MetricLog(tmp_path)
    log.log(1, {"train/explained_variance": math.nan, "train/entropy": math.inf}, "update")
    log.log(2, {"train/explained_variance": -math.inf, "train/entropy": 0.7}, "update")
    assert [line["metrics"] for line in lines(tmp_path)] == [{"train/entropy": 0.7}]


def test_steps_made_again_are_compared_and_not_written_twice(tmp_path, caplog):
    log = MetricLog(tmp_path)
    for step in (10, 20, 30):
        log.log(step, {"train/loss": step / 10, "time/wall_seconds": 1.0}, "update")
    log.close()

    again = MetricLog(tmp_path)  # killed after 30, resumed from a checkpoint at 15
    again.on_train_start(state_at(tmp_path, 15))
    again.log(20, {"train/loss": 2.0, "time/wall_seconds": 5.0}, "update")  # equal, time apart
    again.log(30, {"train/loss": 3.5, "train/extra": 1.0}, "update")  # not exact, and one metric more
    again.log(40, {"train/loss": 4.0}, "update")
    again.close()

    assert again.differences == {("train/loss", 30): (3.0, 3.5)}
    assert "train/loss at step 30 was 3.0 and is now 3.5" in caplog.text
    events = [(line["event"], line["step"], line["metrics"]) for line in lines(tmp_path)[3:]]
    assert events == [
        ("update", 30, {"train/extra": 1.0}),
        ("difference", 30, {}),
        ("update", 40, {"train/loss": 4.0}),
    ]
    assert lines(tmp_path)[4]["differences"] == {"train/loss": [3.0, 3.5]}


def test_a_torn_last_line_is_cut_and_made_again(tmp_path):
    log = MetricLog(tmp_path)
    log.log(10, {"a": 1.0}, "update")
    log.log(20, {"a": 2.0}, "update")
    log.close()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # killed in the middle of a write

    again = MetricLog(tmp_path)
    again.on_train_start(state_at(tmp_path, 10))
    again.log(20, {"a": 2.0}, "update")
    assert [(line["step"], line["metrics"]) for line in lines(tmp_path)] == [(10, {"a": 1.0}), (20, {"a": 2.0})]


def test_on_a_full_disk_lines_wait_until_there_is_room(tmp_path, caplog):
    """The system refuses bytes of a file beyond the 150th, in the middle of the second line."""
    log, unlimited = MetricLog(tmp_path), resource.RLIM_INFINITY
    log.log(1, {"train/loss": 1.0}, "update")
    first = (tmp_path / "metrics.jsonl").read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, unlimited))
    try:
        state = state_at(tmp_path, 2, {"eval/return_mean": 2.0})
        state.evaluation = EvaluationResult(tuple(range(99)), (1.0,) * 99, (1,) * 99)
        log.on_eval_end(state)
        log.log(3, {"train/loss": 3.0}, "update")
        assert (tmp_path / "metrics.jsonl").read_bytes() == first
        with pytest.raises(OSError, match="File too large"):
            log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    log.log(4, {"train/loss": 4.0}, "update")
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    assert [record.getMessage().split(" can't be written: ") for record in caplog.records] == [
        [f"{tmp_path}/metrics.jsonl", "File too large; training continues, lines wait for disk space"],
        [f"{tmp_path}/artifacts/evaluations/step_000000000002.json", "File too large; training continues without it"],
    ]
    log.close()


def test_follower_leaves_a_line_without_end_for_later(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = MetricsReader(path, total_timesteps=100)
    assert follower.read(most=10) == []  # not there yet
    first = json.dumps({"event": "eval", "step": 5, "time": 1.5, "metrics": {"a": 2.0}}) + "\n"
    path.write_text(first + first[:20])
    (line,) = follower.read(most=10)
    assert [(p.key, p.value, p.timestamp, p.step) for p in line.points] == [("a", 2.0, 1500, 5)]
    assert (line.end, follower.offset) == (len(first), len(first))
    with path.open("a") as file:
        file.write(first[20:])
    assert len(follower.read(most=10)) == 1


def test_the_first_point_of_each_bucket_is_kept():
    thinning = Downsampler(total_timesteps=10_000)  # buckets of 5 steps
    steps = [0, 2, 4, 5, 9, 10, 11, 10_000]
    assert [step for step in steps if thinning.keep("update", step, {"a": 1.0})] == [0, 5, 10, 10_000]
    # Another metric has buckets of its own, and a late one in a bucket of the past that is still empty counts.
    assert thinning.keep("update", 11, {"a": 1.0, "b": 2.0}) == {"b": 2.0}
    assert thinning.keep("update", 17, {"b": 2.0}) == {"b": 2.0}
    assert thinning.keep("update", 6, {"b": 2.0}) == {"b": 2.0}


def test_thinning_keeps_every_evaluation_and_about_two_thousand_points():
    thinning = Downsampler(total_timesteps=1_000_000)
    kept = sum(len(thinning.keep("update", step, {"a": 0.0})) for step in range(0, 1_000_001, 10))
    assert kept == 2001
    assert sum(len(thinning.keep("eval", step, {"e": 0.0})) for step in range(0, 1_000_001, 100)) == 10_001


def test_thinning_keeps_all_of_a_short_run():
    thinning = Downsampler(total_timesteps=1_500)
    assert sum(len(thinning.keep("update", step, {"a": 0.0})) for step in range(0, 1_501)) == 1_501


@pytest.mark.parametrize(
    ("name", "legal"),
    [("train/loss", "train/loss"), ("eval[0]", "eval_0_"), ("/lead", "_lead"), ("a/../b", "a/_b"), ("", "_")],
)
def test_names_that_mlflow_refuses_are_made_legal(name, legal):
    assert make_legal_name(name) == legal
    assert make_legal_name("x" * 300) == "x" * 250


def test_settings_become_flat_parameters():
    settings = {
        "lr": 1e-3,
        "net": {"hidden": [64, 64], "empty": {}},
        "name": "a",
        "none": None,
        "env_kwargs": {"map[0]": 1, "map(0)": 2, "long": "y" * 7000},
    }
    params = flatten(settings)
    long = params.pop("env_kwargs.long")
    assert params == {
        "lr": "0.001",
        "net.hidden": "[64, 64]",
        "net.empty": "{}",
        "name": "a",
        "none": "null",
        "env_kwargs.map_0_": "1",
        "env_kwargs.map_0__2": "2",
    }
    assert len(long) == 6000
    assert long.startswith("yyy")
    assert "config.yaml among the artifacts has all of it" in long


def test_the_metric_log_needs_no_mlflow():
    code = (
        "import sys, rl_training.tracking.metric_log as m; assert not {'mlflow', 'torch', 'prefect'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
