"""The clock inside a measured process, ours or a peer's; it needs the standard library alone.

A run script makes a `Meter`, tells it of every step, and ends with `finish`, which prints one line of JSON:

- `steps_per_second`: environment steps a second of wall time, from the window's opening (`Task.warm`) to the end of
  training; `steps_per_cpu_second` is the same of the CPU time of all the process's threads, and of the processes that
  step environments for it;
- `startup_seconds`: from the start of the process to its first environment step;
- `peak_memory_bytes`: the most memory that the process has had (`VmHWM`);
- `solved_seconds`, `solved_step`: of a task that is trained until solved, from the start of the process to the end of
  the evaluation that solved it; null where none did.
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
    """An evaluation reached the task's threshold: the run may end."""


@dataclass(frozen=True)
class Moment:
    """How far a run is."""

    steps: int
    wall: float
    """Seconds since 1970."""
    cpu: float
    """CPU seconds so far, of the process and of its workers."""


def children() -> list[Path]:
    """Returns where the system counts the CPU time of each process that this one has started and that still runs."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path("/proc", pid, "stat") for pid in pids]


def cpu_seconds(stat: Path) -> float:
    """Returns the CPU time of a process so far."""
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def steady(first: Moment, last: Moment) -> dict[str, float]:
    """Returns the speed between two moments of a run.

    Raises:
        ValueError: There are no steps between them.
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
    """The clock of one run."""

    act: Callable[[Any], Any]
    """Returns deterministic actions [N, ...] for observations [N, ...]; a peer's script sets it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.task: Task = TASKS[arguments.task]
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
        """Called at the first environment step."""
        if self._first is None:
            self._first = time.time()
            self._workers = children() if self.arguments.contestant == SPLIT else []

    def stepped(self, steps: int) -> None:
        """Called after an environment step, before the updates that belong to it; evaluates where that is due.

        Raises:
            Solved: An evaluation reached the threshold.
        """
        self.begin()
        if self._opened is None and steps > self.task.warm:
            self._opened = self._moment(steps)
        if self.threshold is not None and steps // self._every > self._evaluated:
            self._evaluated = steps // self._every
            self.judge(steps, evaluate(self.act, self.task.env_id, seed=10_000 + steps))
            if self.solved is not None:
                raise Solved

    def updated(self, steps: int) -> None:
        """Called after updates, by who can say so: the last one of these calls closes the window."""
        self._closed = self._moment(steps)
        if self._opened is None and steps >= self.task.warm:
            self._opened = self._closed

    def judge(self, steps: int, return_mean: float) -> None:
        """Notes the evaluation that solves the task, if this one does."""
        if self.solved is None and self.threshold is not None and return_mean >= self.threshold:
            self.solved = self._moment(steps)

    def _moment(self, steps: int) -> Moment:
        return Moment(steps, time.time(), time.process_time() + sum(map(cpu_seconds, self._workers)))

    def finish(self, steps: int, packages: tuple[str, ...], **more: Any) -> None:
        """Prints what was measured; called when training has ended.

        Args:
            steps: Environment steps in all.
            packages: Whose versions are noted.
            more: Noted besides.
        """
        closed, opened, first = self._closed or self._moment(steps), self._opened, self._first
        result = {
            "task": self.task.name,
            "contestant": self.arguments.contestant,
            "threads": self.arguments.threads,
            "seed": self.arguments.seed,
            "steps": steps,
            "startup_seconds": None if first is None else first - self.arguments.began,
            "peak_memory_bytes": peak_memory(),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        }
        if self.threshold is None:
            assert opened is not None  # each task is longer than its warm-up
            result |= steady(opened, closed)
        else:
            result["solved_seconds"] = None if self.solved is None else self.solved.wall - self.arguments.began
            result["solved_step"] = None if self.solved is None else self.solved.steps
        sys.stdout.flush()
        print(json.dumps(result | more), flush=True)


def parse_run() -> argparse.Namespace:
    """Returns the words that every run script is started with."""
    parser = argparse.ArgumentParser(description="One run of the speed benchmarks; speed_processes.py starts it.")
    parser.add_argument("contestant", help="who trains")
    parser.add_argument("task", choices=list(TASKS), help="a task of speed_tasks.py")
    parser.add_argument("--threads", type=int, default=1, help="of the libraries that compute (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the training (default: %(default)s)")
    parser.add_argument("--began", type=float, default=time.time(), help="when the process was started, since 1970")
    return parser.parse_args()


def evaluate(act: Callable[[Any], Any], env_id: str, seed: int) -> float:
    """Returns the mean return of `EPISODES` episodes played side by side, as ours play theirs."""
    import gymnasium as gym
    import numpy as np

    envs = [gym.make(env_id) for _ in range(EPISODES)]
    observations = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    returns, playing = np.zeros(EPISODES), set(range(EPISODES))
    while playing:  # always of all, so that what is compiled for one shape stays compiled
        actions = act(observations.astype(np.float32))
        for i in sorted(playing):
            observations[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            returns[i] += float(reward)
            if terminated or truncated:
                playing.discard(i)
    return float(returns.mean())


def peak_memory() -> int:
    """Returns the most memory that this process has had, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])
