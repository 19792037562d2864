"""The tasks of the learning benchmark, with the scores to reach and the scores that others have published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import name_config

ZOO = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
"""The source of all published scores. Each is from a single training run: the mean and the standard deviation over the
episodes of one agent, in the versions of the environments of that time (LunarLander-v2)."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A score that RL Baselines3 Zoo has published."""

    mean: float
    std: float
    """Standard deviation over the episodes of one agent, which says nothing about other seeds."""
    steps: int


@dataclass(frozen=True, kw_only=True)
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
    seeds: int = 5

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


TASKS = (
    Task(
        config="configs/dqn/cartpole.yaml",
        env_id="CartPole-v1",
        bar=490,
        steps=50_000,
        published=Published(mean=500.0, std=0.0, steps=50_000),
        minutes=2,
    ),
    Task(
        config="configs/dqn/acrobot.yaml",
        env_id="Acrobot-v1",
        bar=-80,
        steps=100_000,
        published=Published(mean=-76.639, std=11.752, steps=100_000),
        minutes=4,
    ),
    Task(
        config="configs/dqn/mountain_car.yaml",
        env_id="MountainCar-v0",
        bar=-105,
        steps=120_000,
        published=Published(mean=-100.849, std=9.925, steps=120_000),
        minutes=3,
    ),
    Task(
        config="configs/dqn/lunar_lander.yaml",
        env_id="LunarLander-v3",
        bar=200,
        steps=100_000,
        published=Published(mean=154.382, std=79.241, steps=100_000),
        minutes=4,
    ),
    Task(
        config="configs/sac/pendulum.yaml",
        env_id="Pendulum-v1",
        bar=-160,
        steps=20_000,
        published=Published(mean=-156.995, std=88.714, steps=20_000),
        minutes=3,
    ),
    Task(
        config="configs/sac/mountain_car_continuous.yaml",
        env_id="MountainCarContinuous-v0",
        bar=94,
        steps=50_000,
        published=Published(mean=94.679, std=1.134, steps=50_000),
        minutes=6,
    ),
    Task(
        config="configs/sac/lunar_lander_continuous.yaml",
        env_id="LunarLanderContinuous-v3",
        bar=200,
        steps=100_000,
        published=Published(mean=260.390, std=65.467, steps=500_000),
        minutes=20,
        seeds=3,
    ),
    Task(
        config="configs/ppo/cartpole.yaml",
        env_id="CartPole-v1",
        bar=490,
        steps=100_000,
        published=Published(mean=500.0, std=0.0, steps=100_000),
        minutes=1,
    ),
    Task(
        config="configs/ppo/acrobot.yaml",
        env_id="Acrobot-v1",
        bar=-78,
        steps=1_000_000,
        published=Published(mean=-73.506, std=18.201, steps=1_000_000),
        minutes=5,
    ),
    Task(
        config="configs/ppo/pendulum.yaml",
        env_id="Pendulum-v1",
        bar=-175,
        steps=100_000,
        published=Published(mean=-172.225, std=104.159, steps=100_000),
        minutes=1,
    ),
    Task(
        config="configs/ppo/lunar_lander.yaml",
        env_id="LunarLander-v3",
        bar=245,
        steps=1_000_000,
        published=Published(mean=242.119, std=31.823, steps=1_000_000),
        minutes=10,
    ),
    Task(
        config="configs/ppo/mountain_car_continuous.yaml",
        env_id="MountainCarContinuous-v0",
        bar=90,
        steps=100_000,
        published=Published(mean=88.343, std=2.572, steps=20_000),
        minutes=1,
    ),
)
"""All tasks, in the order of the table."""
