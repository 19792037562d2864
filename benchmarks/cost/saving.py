"""Measures how long training is blocked by saving a replay buffer, and how much is written if little of it is new.

A ring of image-like transitions is filled before any of it is written. This is the worst case: in a run, complete
shards are written during training. Then two checkpoints are saved with the same code as in a run, the second after 1%
of new transitions. A loop that samples batches and stores steps represents training. For each checkpoint:

- `stand_still_seconds`: duration of the call that saves the checkpoint;
- `longest_step_seconds`: longest step of the loop while the checkpoint is written; `..._before`: without writing;
- `steps_per_second`: speed of the loop while the checkpoint is written; `..._before`: without writing;
- `whole_seconds`: time from the call until the checkpoint has its final name;
- `new_transitions`, `written_bytes`: new transitions in the buffer, and new bytes in the run's directory.

`peak_memory` is the peak memory of the process, minus its memory before the buffer, divided by the size of the buffer.
`plain` is a lower bound for the same number of bytes: a copy in memory, and a write to a single file with a sync.
`load_average` is the one-minute load average of the machine before the measurement; other load makes every number
larger.

    python -m benchmarks.cost.saving --gigabytes 1
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.harness import record
from benchmarks.speed.meter import read_peak_memory
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.run_layout import REPLAY
from rl_training.runs.progress import Progress
from rl_training.runtime.checkpoint import Checkpoint, ReplayStore, checkpoint_name, load_replay
from rl_training.runtime.checkpoint_saver import Contents, Saver
from rl_training.runtime.run_utils import TrainingRun

OBSERVATION = (64, 64)
BATCH = 32
WEIGHTS = 1_000_000
"""Weights of the network that is also saved, each with two moments."""


class Training:
    """A full ring, and a loop like that of an off-policy algorithm without the updates."""

    def __init__(self, run_dir: Path, capacity: int) -> None:
        self.run_dir, self.checkpoint = run_dir, Path()
        self.store, self.buffer, self.progress = ReplayStore(run_dir / REPLAY), make_buffer(capacity), Progress()
        config = DQNConfig(env_id="None-v0", total_timesteps=2_000_000)
        self.saver = Saver(TrainingRun(run_dir, "benchmark"), config, self._record_checkpoint)
        self._rng = np.random.default_rng(0)
        self._frames = self._rng.integers(0, 256, (257, *OBSERVATION), np.uint8)
        self._weights = {"weights": torch.randn(WEIGHTS)}
        self._moments = {name: torch.randn(WEIGHTS) for name in ("mean", "square")}
        for array in (self.buffer.obs, self.buffer.next_obs):
            for first in range(0, capacity, 257):
                array[first : first + 257, 0] = self._frames[: capacity - first]
        self.buffer.total = capacity

    def step(self, until: int) -> float:
        """Samples a batch, and stores a step if there are fewer than `until`; returns the duration in seconds."""
        began, i = time.perf_counter(), self.buffer.total
        self.buffer.sample(BATCH, self._rng)
        if i < until:
            self.store.make_room(self.buffer)
            flag, (frame, following) = np.array([False]), self._frames[[i % 257, (i + 1) % 257]]
            self.buffer.add(frame, np.array([i]), np.array([1.0]), following, flag, flag)
        return time.perf_counter() - began

    def save(self, until: int, new: int) -> dict[str, float]:
        """Saves a checkpoint, and continues the loop while it is written.

        Args:
            until: Number of transitions after which the loop stores no more.
            new: Number of transitions in the buffer that no checkpoint contains yet.
        """
        files, target = self._measure_files(), self.run_dir / "checkpoints" / checkpoint_name(self.buffer.total)
        self.progress.num_timesteps = self.buffer.total
        began = time.perf_counter()
        self.saver.begin(self.progress, self._make_contents)
        stand_still, steps = time.perf_counter() - began, [self.step(until)]
        while not target.exists():
            steps.append(self.step(until))
        whole = time.perf_counter() - began
        self.saver.end()
        before = [self.step(0) for _ in range(len(steps))]
        return {
            "stand_still_seconds": stand_still,
            "longest_step_seconds": max(steps),
            "longest_step_seconds_before": max(before),
            "steps_per_second": len(steps) / sum(steps),
            "steps_per_second_before": len(before) / sum(before),
            "whole_seconds": whole,
            "new_transitions": new,
            "written_bytes": sum(size for inode, size in self._measure_files().items() if inode not in files),
        }

    def _make_contents(self) -> Contents:
        shards = self.store.seal(self.buffer)
        return Contents(policy=self._weights, trainer=self._moments, extra={}, shards=shards)

    def _record_checkpoint(self, checkpoint: Checkpoint, is_best: bool) -> None:
        self.checkpoint = checkpoint

    def _measure_files(self) -> dict[int, int]:
        """Returns the size of each file of the run, by inode, so that hard links count once."""
        stats = [path.stat() for path in self.run_dir.rglob("*") if path.is_file()]
        return {stat.st_ino: stat.st_size for stat in stats}


def save_twice(
    folder: Path, capacity: int, new: int, meanwhile: int
) -> tuple[Training, dict[str, float], dict[str, float]]:
    """Saves a full ring in `folder`, and again after `new` transitions; returns the training and both measurements.

    Up to `meanwhile` of the new transitions are stored while the first checkpoint is written.
    """
    training = Training(folder, capacity)
    first = training.save(capacity + meanwhile, capacity)
    while training.buffer.total < capacity + new:
        training.step(capacity + new)
    second = training.save(0, new)
    training.saver.close()
    return training, first, second


def count_transitions(gigabytes: float) -> int:
    """Returns how many transitions a ring of this size holds."""
    return int(gigabytes * 1e9 / (2 * np.prod(OBSERVATION)))


def make_buffer(capacity: int) -> ReplayBuffer:
    """Returns an empty ring."""
    return ReplayBuffer(capacity, 1, OBSERVATION, np.dtype(np.uint8), (), np.dtype(np.int64))


def measure(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Returns the measurements of both checkpoints.

    Raises:
        RuntimeError: The last checkpoint does not contain what the buffer contained.
    """
    warm_up = Training(folder / "warm_up", 100)
    warm_up.save(110, 100)
    warm_up.saver.close()
    before = psutil.Process().memory_info().rss
    capacity = count_transitions(gigabytes)
    training, first, second = save_twice(folder / "run", capacity, capacity // 100, capacity // 100)
    peak, buffer, restored = read_peak_memory() - before, training.buffer, make_buffer(capacity)
    load_replay(training.checkpoint, restored)
    if any(not np.array_equal(array, restored.arrays()[name]) for name, array in buffer.arrays().items()):
        raise RuntimeError("the checkpoint differs from the buffer")
    return {
        "buffer_bytes": buffer.nbytes,
        "transitions": capacity,
        "first": {**first, "plain": measure_plain(folder, first["written_bytes"])},
        "second": {**second, "plain": measure_plain(folder, second["written_bytes"])},
        "peak_memory": peak / buffer.nbytes,
    }


def measure_plain(folder: Path, size: float) -> dict[str, float]:
    """Returns the seconds of a copy of `size` bytes into allocated memory, and of a write to a file."""
    source, target = np.random.default_rng(0).bytes(int(size)), np.ones(int(size), np.uint8)
    began = time.perf_counter()
    target[:] = np.frombuffer(source, np.uint8)
    copied = time.perf_counter()
    with (folder / "plain").open("wb") as file:
        file.write(source)
        file.flush()
        os.fsync(file.fileno())
    return {"copy_seconds": copied - began, "write_seconds": time.perf_counter() - copied}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long a checkpoint blocks training.")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the replay buffer (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        result = measure(Path(folder), arguments.gigabytes)
    print(json.dumps(result, indent=2))
    record("saving", {"load_average": load, **result})


if __name__ == "__main__":
    main()
