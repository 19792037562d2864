"""The tasks of the learning benchmark: what must be reached, and what others have published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ZOO = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
"""Where all published scores are from. Each is one training run: mean and standard deviation over the episodes of its
one agent, in environments of their time (LunarLander-v2)."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A score of RL Baselines3 Zoo."""

    mean: float
    std: float
    """Over the episodes of one agent, so it says nothing about other seeds."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A shipped config and the score that its final policies must reach."""

    config: str
    """Path from the root of the repository."""
    env_id: str
    bar: float
    """The interquartile mean over the seeds must be at least this."""
    steps: int
    """Environment steps that a training may take at most."""
    published: Published
    minutes: float
    """About how long a seed takes on one core: long ones are begun first. No number depends on it."""
    seeds: int = 5

    @property
    def name(self) -> str:
        """`dqn-acrobot`, of `configs/dqn/acrobot.yaml`."""
        path = Path(self.config)
        return f"{path.parent.name}-{path.stem}"

    @property
    def algo(self) -> str:
        """`DQN`, of `configs/dqn/acrobot.yaml`."""
        return Path(self.config).parent.name.upper()

    @property
    def title(self) -> str:
        """`DQN Acrobot-v1`."""
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
"""In the order in which they are shown."""
