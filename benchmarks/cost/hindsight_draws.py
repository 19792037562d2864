"""Measures what hindsight adds to storing a step and to drawing a batch, for `docs/decisions.md`.

`python -m benchmarks.cost.hindsight_draws`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from benchmarks.harness import format_row
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.goals.goal_rewards import GoalRewards
from rl_training.envs.training_envs import TrainingEnvs

BITS = "rl_training.envs.goals.bit_flipping:BitFlipping-v0"
STEPS, BATCH = 10_000, 256
REPEATS, CALLS = 200, 20


def measure(call: Callable[[], object]) -> float:
    """Returns the shortest mean time of a call, in microseconds."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - began) / CALLS)
    return 1e6 * min(times)


def fill(envs: TrainingEnvs, buffers: list[ReplayBuffer], rng: np.random.Generator) -> tuple[Any, ...]:
    """Plays random actions into buffers; returns the last step as `add` takes it."""
    envs.start()
    row: tuple[Any, ...] = ()
    for _ in range(STEPS):
        observation, action = envs.observation, rng.integers(envs.codec.nvec[0], size=1)
        step = envs.step(action)
        row = (observation, action, step.reward, step.next_observation, step.terminated, step.truncated)
        for buffer in buffers:
            buffer.add(*row)
    return row


def main() -> None:
    config = DQNConfig(env_id=BITS, total_timesteps=STEPS, hindsight={})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    with ExitStack() as opened:
        envs = opened.enter_context(closing(TrainingEnvs(config, gamma=None)))
        goals = opened.enter_context(closing(GoalRewards(config, envs.encoder)))
        encoder, action = envs.encoder, (envs.codec.shape, envs.codec.dtype)
        plain = ReplayBuffer(STEPS, 1, encoder.shape, encoder.dtype, *action)
        hindsight = HindsightReplayBuffer(STEPS, 1, encoder, *action, 0.98, goals.columns, goals.compute, 0.8)
        row = fill(envs, [plain, hindsight], rng)
        pair = (np.zeros((BATCH, 15), np.float32),) * 2
        print(format_row(["", "without", "with hindsight"]))
        for name, call in (("sample", lambda b: b.sample(BATCH, rng)), ("add", lambda b: b.add(*row))):
            times = [f"{measure(lambda call=call, b=b: call(b)):,.1f} us" for b in (plain, hindsight)]
            print(format_row([name, *times]), flush=True)
        print(f"compute, of which the environment takes a part: {measure(lambda: goals.compute(*pair)):,.1f} us")


if __name__ == "__main__":
    main()
