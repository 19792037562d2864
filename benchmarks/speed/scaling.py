"""Measures how costs grow with the number of environments, the length of a run, and the size of the replay buffer.

Each point is measured in its own process with one thread.

- `envs`: PPO on CartPole with 1 to 1,024 environments, plain and native: environment steps per second of complete
  iterations and of collection alone; the median over the iterations.
- `length`: PPO on 64 native CartPoles for 100,000 to 10,000,000 steps, with tracking, and with an evaluation and a
  checkpoint every 100,000 steps: microseconds per step in `Trainer.train()`, peak memory, and the number of points of
  the longest metric, in the run's own file and in MLflow.
- `saving`: a checkpoint of a full ring of image-like transitions, when all of them or 1,000 of them are new: how long
  training is blocked, how long until the checkpoint is complete, and how much is written.

    python -m benchmarks.speed.scaling                          # benchmarks/results/scaling.json
    python -m benchmarks.speed.scaling --parts envs saving
    python -m benchmarks.speed.report                           # docs/benchmarks.md and the figure, from the JSON
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cost.saving import count_transitions, save_twice
from benchmarks.harness import RESULTS, Stopwatch, collect_provenance
from benchmarks.speed.floors import Phases
from benchmarks.speed.meter import read_peak_memory
from benchmarks.speed.processes import add_to_file, run_recorded
from benchmarks.speed.runners.run_ours import ALONE
from benchmarks.speed.tasks import SPEED
from rl_training import train_ppo
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.experiment.loading import config_from_mapping

NAME = "scaling"
ROLLOUTS = {1: 120, 8: 60, 64: 24, 512: 8, 1_024: 6}
"""The number of measured iterations for each number of environments."""
POINTS: dict[str, list[list[str]]] = {
    "envs": [[str(count), kind] for count in ROLLOUTS for kind in ("sync", "native")],
    "length": [["100000"], ["1000000"], ["10000000"]],
    "saving": [["0.1"], ["0.3"], ["1.0"]],
}
"""The points of each part, as arguments of `--only PART`."""
NEW = 1_000
"""Number of new transitions at the second checkpoint of a buffer."""
EACH = 100_000
"""Steps between evaluations, and between checkpoints, of a long run."""


def make_config(**settings: Any) -> PPOConfig:
    """Returns the settings of the first speed task, with changes."""
    task = SPEED[0]
    config = config_from_mapping({"algo": task.algo, "env_id": task.env_id, **task.settings, **settings})
    assert isinstance(config, PPOConfig)
    return config


def measure_envs(count: str, vectorization: str) -> dict[str, Any]:
    """Returns the speed with this number of environments."""
    num_envs = int(count)
    rollout = num_envs * SPEED[0].settings["rollout_steps"]
    batch = min(rollout, max(256, rollout // 32))
    first = ROLLOUTS[num_envs] // 3  # iterations of the warm-up
    phases, steps = Phases(), (ROLLOUTS[num_envs] + first) * rollout
    settings = {"num_envs": num_envs, "vectorization": vectorization, "batch_size": batch, "total_timesteps": steps}
    train_ppo(make_config(**settings, **ALONE), [phases])
    iterations = [sum(pair) for pair in zip(phases.collected[first:], phases.updated[first:], strict=True)]
    return {
        "num_envs": num_envs,
        "vectorization": vectorization,
        "batch_size": batch,
        "steps_per_second": rollout / median(iterations),
        "collection_steps_per_second": rollout / median(phases.collected[first:]),
    }


def measure_length(steps: str) -> dict[str, Any]:
    """Returns the costs and the metric points of a run of this length."""
    from rl_training.api.train_and_resume import train
    from rl_training.runtime.trainer import Trainer
    from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri

    total, training, each = int(steps), Stopwatch(), {"every": EACH}
    training.watch(Trainer, "train")
    summary = train(
        make_config(
            num_envs=64,
            vectorization="native",
            rollout_steps=32,
            batch_size=512,
            total_timesteps=total,
            checkpoint=each,
            evaluation=each | {"final_episodes": 1, "video": False},
        )
    )
    memory = read_peak_memory()
    lines = (summary.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    own = Counter(key for line in lines for key in json.loads(line)["metrics"])
    client, run_id = connect(resolve_tracking_uri()), summary.run_id
    assert run_id is not None  # set, because the run is tracked
    sent = {key: len(client.get_metric_history(run_id, key)) for key in own}
    return {
        "steps": total,
        "microseconds_per_step": 1e6 * training.seconds / total,
        "peak_memory_bytes": memory,
        "lines": len(lines),
        "most_points_in_file": max(own.values()),
        "most_points_in_mlflow": max(sent.values()),
        "unsent": summary.unsent,
    }


def measure_saving(gigabytes: str) -> dict[str, Any]:
    """Returns the times of two checkpoints of a buffer of this size."""
    capacity = count_transitions(float(gigabytes))
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        training, first, second = save_twice(Path(folder), capacity, NEW, 0)
    return {"buffer_bytes": training.buffer.nbytes, "transitions": capacity, "all_new": first, "few_new": second}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how costs grow with environments, steps and buffer size.")
    parser.add_argument(
        "--parts", nargs="+", choices=list(POINTS), default=list(POINTS), help="parts to measure (default: all)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="measure one point in this process")
    arguments = parser.parse_args()
    if arguments.only:
        part, *words = arguments.only
        measure = {"envs": measure_envs, "length": measure_length, "saving": measure_saving}[part]
        print(json.dumps(measure(*words)))
        return
    for part in arguments.parts:
        load, measured = os.getloadavg()[0], []
        for words in POINTS[part]:
            measured.append(run_recorded(["-m", "benchmarks.speed.scaling", "--only", part, *words], 1))
            print(f"{part} {' '.join(words)}: {json.dumps(measured[-1])}", flush=True)
        add_to_file(NAME, part, {"load_average": load, "points": measured, **collect_provenance()}, arguments.results)


if __name__ == "__main__":
    main()
