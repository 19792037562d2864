"""Segments of runs that train in less than a second, and what is compared of them."""

import json
from pathlib import Path
from typing import Any

from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.trial import run_segment

UID = "0123456789abcdef0123456789abcdef"
SHARED: dict[str, Any] = {
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 512,
    "logging": {"every": 64},
    "evaluation": {"every": 128, "episodes": 3, "final_episodes": 5, "video": False},
    "checkpoint": {"every": 100},
}
PPO: dict[str, Any] = {
    **SHARED,
    "algo": "ppo",
    "num_envs": 2,
    "rollout_steps": 25,
    "batch_size": 25,
    "epochs": 1,
    "learning_rate": 0.01,
}
DQN: dict[str, Any] = {**SHARED, "algo": "dqn", "learning_starts": 50, "buffer_size": 400, "batch_size": 16}


def make_segment(settings: dict[str, Any], until: int = 512, **changes: Any) -> Segment:
    """Returns the segment of a trial that is not tracked."""
    fields: dict[str, Any] = {"sweep_uid": UID, "trial": 0, "seed": settings.get("seed", 0), "generation": 0}
    fields |= {"settings": settings, "until": until, "metric": "eval/return_mean"}
    return Segment(**(fields | changes))


def run(segment: Segment) -> RunRecord:
    """Trains a segment that no signal stops."""
    record = run_segment(segment)
    assert record is not None
    return record


def read_metrics(run_dir: Path | str) -> list[tuple[int, str, float]]:
    """Returns the points of a run's `metrics.jsonl` in their order, without those that measure time."""
    lines = map(json.loads, (Path(run_dir) / "metrics.jsonl").read_text().splitlines())
    points = ((line["step"], *pair) for line in lines for pair in line["metrics"].items())
    return [point for point in points if not point[1].startswith("time/")]
