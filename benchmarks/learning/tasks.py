"""The tasks of the learning benchmark, with the scores to reach and the scores that others have published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import name_config

ZOO = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
"""The source of all published scores. Each is from a single training run: the mean and the standard deviation over the
episodes of one agent, in the versions of the environments of that time (LunarLander-v2)."""


@dataclass(frozen=True)
class Published:
    """A score that RL Baselines3 Zoo has published."""

    mean: float
    std: float
    """Standard deviation over the episodes of one agent, which says nothing about other seeds."""
    steps: int


@dataclass(frozen=True)
class Task:
    """A shipped config, and the score that its final policies must reach."""

    config: str
    """Path of the config from the root of the repository."""
    env_id: str
    bar: float
    """Least interquartile mean over the seeds."""
    steps: int
    """Most environment steps that a training may take."""
    published: Published
    minutes: float
    """Approximate duration of a seed on one core. Long trainings are started first; results do not depend on it."""
    seeds: int

    @property
    def name(self) -> str:
        """The name in file names: `dqn-acrobot` for `configs/dqn/acrobot.yaml`."""
        return name_config(self.config)

    @property
    def algo(self) -> str:
        """The name of the algorithm: `DQN` for `configs/dqn/acrobot.yaml`."""
        return Path(self.config).parent.name.upper()

    @property
    def title(self) -> str:
        """The title in tables and figures, such as `DQN Acrobot-v1`."""
        return f"{self.algo} {self.env_id}"


_TABLE = (
    # config, environment, bar, steps, published mean, standard deviation and steps, minutes, seeds
    ("dqn/cartpole", "CartPole-v1", 490, 50_000, Published(500.0, 0.0, 50_000), 2, 5),
    ("dqn/acrobot", "Acrobot-v1", -80, 100_000, Published(-76.639, 11.752, 100_000), 4, 5),
    ("dqn/mountain_car", "MountainCar-v0", -105, 120_000, Published(-100.849, 9.925, 120_000), 3, 5),
    ("dqn/lunar_lander", "LunarLander-v3", 200, 100_000, Published(154.382, 79.241, 100_000), 4, 5),
    ("sac/pendulum", "Pendulum-v1", -160, 20_000, Published(-156.995, 88.714, 20_000), 3, 5),
    ("sac/mountain_car_continuous", "MountainCarContinuous-v0", 94, 50_000, Published(94.679, 1.134, 50_000), 6, 5),
    (
        "sac/lunar_lander_continuous",
        "LunarLanderContinuous-v3",
        200,
        100_000,
        Published(260.390, 65.467, 500_000),
        20,
        3,
    ),
    ("ppo/cartpole", "CartPole-v1", 490, 100_000, Published(500.0, 0.0, 100_000), 1, 5),
    ("ppo/acrobot", "Acrobot-v1", -78, 1_000_000, Published(-73.506, 18.201, 1_000_000), 5, 5),
    ("ppo/pendulum", "Pendulum-v1", -175, 100_000, Published(-172.225, 104.159, 100_000), 1, 5),
    ("ppo/lunar_lander", "LunarLander-v3", 245, 1_000_000, Published(242.119, 31.823, 1_000_000), 10, 5),
    ("ppo/mountain_car_continuous", "MountainCarContinuous-v0", 90, 100_000, Published(88.343, 2.572, 20_000), 1, 5),
)

TASKS = tuple(
    Task(f"configs/{config}.yaml", env_id, bar, steps, published, minutes, seeds)
    for config, env_id, bar, steps, published, minutes, seeds in _TABLE
)
"""All tasks, in the order of the table."""
