"""Computes the best return that any policy can reach on Pendulum-v1, by dynamic programming.

    python -m benchmarks.learning.pendulum_optimum

It prints the best mean return over the held-out episodes, over the starts of all episodes, and of policies that are
optimal for a discounted return, on the held-out episodes. A hundred starts are few: the best returns of single episodes
range from 0 to about -400, so their mean over 100 episodes differs from that over all by 7 or so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from benchmarks.learning.runs import EPISODES
from rl_training.config.settings import EvaluationConfig
from rl_training.seeding import episode_seeds

STEPS = 200
"""Length of an episode."""
TORQUES = np.linspace(-2, 2, 33)
FINE_TORQUES = np.linspace(-2, 2, 201)
MAX_SPEED = 8.0


def step(angle: np.ndarray, speed: np.ndarray, torque: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the next angles, the next speeds and the rewards, as Gymnasium's Pendulum-v1 computes them."""
    wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
    reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = np.clip(speed + (15 * np.sin(angle) + 3 * torque) * 0.05, -MAX_SPEED, MAX_SPEED)
    return angle + speed * 0.05, speed, reward


@dataclass(frozen=True)
class Grid:
    """States of the pendulum at equal distances, between which values are interpolated linearly."""

    angles: int = 361
    speeds: int = 241

    def states(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the angles and the speeds, each of shape [angles, speeds]."""
        angles = np.linspace(-np.pi, np.pi, self.angles, endpoint=False)
        return tuple(np.meshgrid(angles, np.linspace(-MAX_SPEED, MAX_SPEED, self.speeds), indexing="ij"))

    def weigh(self, angle: np.ndarray, speed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns, for each of the four neighbours of states, the flat index and the weight."""
        x = (angle + np.pi) % (2 * np.pi) / (2 * np.pi) * self.angles
        y = (speed + MAX_SPEED) / (2 * MAX_SPEED) * (self.speeds - 1)
        row, column = np.floor(x).astype(np.int64), np.clip(np.floor(y).astype(np.int64), 0, self.speeds - 2)
        right, up = x - row, y - column
        return [
            ((row + i) % self.angles * self.speeds + column + j, (right if i else 1 - right) * (up if j else 1 - up))
            for i in (0, 1)
            for j in (0, 1)
        ]

    def interpolate(self, values: np.ndarray, angle: np.ndarray, speed: np.ndarray) -> np.ndarray:
        """Returns the values of any states, given those of the grid, shape [angles * speeds]."""
        return np.sum([values[index] * weight for index, weight in self.weigh(angle, speed)], axis=0)

    def solve(self, steps: int, gamma: float = 1.0) -> list[np.ndarray]:
        """Returns the best discounted return of the states of the grid with 0 to `steps` steps to go."""
        moves = []
        for torque in TORQUES:
            angle, speed, reward = step(*self.states(), torque)
            moves.append((reward.ravel(), self.weigh(angle.ravel(), speed.ravel())))
        values = [np.zeros(self.angles * self.speeds)]
        for _ in range(steps):
            returns = [r + gamma * sum(values[-1][index] * weight for index, weight in near) for r, near in moves]
            values.append(np.max(returns, axis=0))
        return values


def play(grid: Grid, values: Sequence[np.ndarray], gamma: float, seeds: Sequence[int]) -> list[float]:
    """Plays an episode from each seed in Gymnasium's environment, and returns the undiscounted returns.

    Args:
        grid: The grid.
        values: The values of the grid's states after each step.
        gamma: The discount factor of these values.
        seeds: The argument of `reset(seed=...)` for each episode.
    """
    env, returns = gym.make("Pendulum-v1"), []
    for seed in seeds:
        env.reset(seed=seed)
        rewards = []
        for value in values:
            angle, speed, reward = step(*env.unwrapped.state, FINE_TORQUES)
            best = np.argmax(reward + gamma * grid.interpolate(value, angle, speed))
            rewards.append(float(env.step(FINE_TORQUES[[best]].astype(np.float32))[1]))
        returns.append(sum(rewards))
    env.close()
    return returns


def main() -> None:
    grid, rng = Grid(), np.random.default_rng(0)
    seeds = episode_seeds(EvaluationConfig().seed, "held_out", EPISODES)
    values = grid.solve(STEPS)
    starts = rng.uniform(-np.pi, np.pi, 1_000_000), rng.uniform(-1, 1, 1_000_000)
    print(f"best on the {EPISODES} held-out episodes: {np.mean(play(grid, values[-2::-1], 1.0, seeds)):.1f}")
    print(f"best over the starts of all episodes: {grid.interpolate(values[-1], *starts).mean():.1f}")
    for gamma in (0.98, 0.99):
        value = grid.solve(600, gamma)[-1]
        mean = np.mean(play(grid, [value] * STEPS, gamma, seeds))
        print(f"optimal with gamma {gamma}, on the held-out episodes: {mean:.1f}")


if __name__ == "__main__":
    main()
