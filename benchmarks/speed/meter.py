"""Measures time inside a measured process, ours or a peer's; it needs only the standard library.

A run script creates a `Meter`, reports every step to it, and ends with `finish`, which prints one line of JSON:

- `steps_per_second`: environment steps per second of wall time, from the end of the warm-up (`Task.find_length`) to the
  end of training; `steps_per_cpu_second`: the same per second of CPU time, summed over all threads of the process and
  over the processes that step environments for it;
- `startup_seconds`: time from the start of the process to its first environment step;
- `peak_memory_bytes`: peak memory of the process (`VmHWM`);
- `solved_seconds`, `solved_step`: for a task that is trained until it is solved, time and step from the start of the
  process to the end of the evaluation that solved the task, or null.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.speed.tasks import EPISODES, SPLIT, TASKS, SolvedTask, Task

TICKS = os.sysconf("SC_CLK_TCK")


class Solved(Exception):
    """An evaluation reached the threshold of the task, so the run can end."""


@dataclass(frozen=True)
class Moment:
    """The steps and the time of a run at one moment."""

    steps: int
    wall: float
    """Seconds since 1970."""
    cpu: float
    """CPU seconds until now, of the process and of its workers."""


def find_child_stats() -> list[Path]:
    """Returns the `/proc` files with the CPU times of the running child processes."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path("/proc", pid, "stat") for pid in pids]


def read_cpu_seconds(stat: Path) -> float:
    """Returns the CPU time of a process until now, in seconds."""
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def compute_speed(first: Moment, last: Moment) -> dict[str, float]:
    """Returns the speed between two moments of a run.

    Raises:
        ValueError: There are no steps between the two moments.
    """
    steps = last.steps - first.steps
    if steps <= 0:
        raise ValueError(f"got a window from step {first.steps} to step {last.steps}, expected steps in between")
    return {
        "window_steps": steps,
        "window_seconds": last.wall - first.wall,
        "steps_per_second": steps / (last.wall - first.wall),
        "steps_per_cpu_second": steps / (last.cpu - first.cpu),
    }


class Meter:
    """Measures one run."""

    act: Callable[[Any], Any]
    """Returns deterministic actions [N, ...] for observations [N, ...]; the script of a peer sets this function."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.task: Task = TASKS[arguments.task]
        self.warm, self.steps = self.task.find_length(arguments.contestant)
        self.threshold: float | None = None
        if isinstance(self.task, SolvedTask):
            self._every, self.threshold = self.task.every, self.task.threshold
        self._first: float | None = None
        self._workers: list[Path] = []
        self._opened: Moment | None = None
        self._closed: Moment | None = None
        self._evaluated = 0
        self.solved: Moment | None = None

    def begin(self) -> None:
        """Records the first environment step."""
        if self._first is None:
            self._first = time.time()
            self._workers = find_child_stats() if self.arguments.contestant == SPLIT else []

    def record_step(self, steps: int) -> None:
        """Records an environment step, before its updates; evaluates the policy if an evaluation is due.

        Raises:
            Solved: An evaluation reached the threshold.
        """
        self.begin()
        if self._opened is None and steps > self.warm:
            self._opened = self._measure_moment(steps)
        if self.threshold is not None and steps // self._every > self._evaluated:
            self._evaluated = steps // self._every
            self.record_evaluation(steps, evaluate(self.act, self.task.env_id, seed=10_000 + steps))
            if self.solved is not None:
                raise Solved

    def close_window(self, steps: int) -> None:
        """Records the end of updates, for contestants that can report it; the last call ends the measured window."""
        self._closed = self._measure_moment(steps)
        if self._opened is None and steps >= self.warm:
            self._opened = self._closed

    def record_evaluation(self, steps: int, return_mean: float) -> None:
        """Records an evaluation, if it is the first that solves the task."""
        if self.solved is None and self.threshold is not None and return_mean >= self.threshold:
            self.solved = self._measure_moment(steps)

    def _measure_moment(self, steps: int) -> Moment:
        return Moment(steps, time.time(), time.process_time() + sum(map(read_cpu_seconds, self._workers)))

    def finish(self, steps: int, packages: tuple[str, ...], **more: Any) -> None:
        """Prints the measurements after training.

        Args:
            steps: Environment steps of the run.
            packages: Packages whose versions are recorded.
            more: Additional results.
        """
        closed, opened, first = self._closed or self._measure_moment(steps), self._opened, self._first
        result = {
            "task": self.task.name,
            "contestant": self.arguments.contestant,
            "threads": self.arguments.threads,
            "seed": self.arguments.seed,
            "steps": steps,
            "startup_seconds": None if first is None else first - self.arguments.began,
            "peak_memory_bytes": read_peak_memory(),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        }
        if self.threshold is None:
            assert opened is not None  # each task is longer than its warm-up
            result |= compute_speed(opened, closed)
        else:
            result["solved_seconds"] = None if self.solved is None else self.solved.wall - self.arguments.began
            result["solved_step"] = None if self.solved is None else self.solved.steps
        sys.stdout.flush()
        print(json.dumps(result | more), flush=True)


def parse_arguments() -> argparse.Namespace:
    """Returns the command-line arguments of a run script."""
    parser = argparse.ArgumentParser(description="Run one measured training of the speed benchmarks.")
    parser.add_argument("contestant", help="the contestant that trains")
    parser.add_argument("task", choices=list(TASKS), help="a task of tasks.py")
    parser.add_argument("--threads", type=int, default=1, help="threads of numeric libraries (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (default: %(default)s)")
    parser.add_argument("--began", type=float, default=time.time(), help="start of the process, in seconds since 1970")
    return parser.parse_args()


def evaluate(act: Callable[[Any], Any], env_id: str, seed: int) -> float:
    """Returns the mean return of `EPISODES` episodes that are played in parallel, as in our own evaluations."""
    import gymnasium as gym
    import numpy as np

    envs = [gym.make(env_id) for _ in range(EPISODES)]
    observations = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    returns, playing = np.zeros(EPISODES), set(range(EPISODES))
    while playing:  # always acts for all episodes, so that a compiled policy sees a single shape
        actions = act(observations.astype(np.float32))
        for i in sorted(playing):
            observations[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            returns[i] += float(reward)
            if terminated or truncated:
                playing.discard(i)
    return float(returns.mean())


def read_peak_memory() -> int:
    """Returns the peak memory of this process, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])
