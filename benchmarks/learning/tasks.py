"""The tasks of the learning benchmark, with the scores to reach and the scores that others have published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.harness import name_config

ZOO = "RL Baselines3 Zoo"
"""https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md. Each of its scores is from a single training
run: the mean and the standard deviation over the episodes of one agent, in the versions of the environments of that
time (LunarLander-v2, HalfCheetah-v3)."""
HUB = "RL Zoo on Hugging Face"
"""https://huggingface.co/qgallouedec/tqc-Pendulum-v1-2735755449, for a task that the Zoo's own table does not have:
also the mean and the standard deviation over the episodes of one agent."""
TIANSHOU = "Tianshou"
"""https://github.com/thu-ml/tianshou/tree/v1.2.0/examples/mujoco: the mean and the standard deviation over ten seeds
of each seed's best evaluation."""

OPTIMUM = "the optimum"
"""The best possible score. With 15 bits it is the mean and the standard deviation of a binomial distribution: a goal
differs in 7.5 bits on average, with a deviation of 1.94, and each flip but the last one costs 1. Taxi's is the mean and
the standard deviation over its 300 starts, of the shortest way from each."""

VARIANTS = ("native", "no_velocity", "quantiles", "prioritized", "masked")
"""How the name of a config ends whose task is another config's in another form, or learned in another way."""


@dataclass(frozen=True)
class Published:
    """A published score."""

    mean: float
    std: float
    """Standard deviation: the Zoo's is over the episodes of one agent, and says nothing about other seeds."""
    steps: int
    source: str = ZOO


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
    group: Literal["seeds", "mujoco", "pong", "robotics"] = "seeds"
    """The part of the queue that trains this task; none trains `robotics`, which needs an environment of its own."""
    overrides: tuple[str, ...] = ()
    """Settings that differ from the config."""

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
        """The title in tables and figures, such as `DQN Acrobot-v1` or `PPO CartPole-v1, no velocity`."""
        variant = next((f", {name.replace('_', ' ')}" for name in VARIANTS if self.name.endswith(name)), "")
        return f"{self.algo} {self.env_id.rpartition(':')[2]}{variant}"


_PONG = ("total_timesteps=2_500_000", "evaluation.stop_at_return=20", "evaluation.stop_after=1")
"""Training ends at a return of 20, or after 10,000,000 frames; each step is four frames."""

_TABLE = (
    # config, environment, bar, steps, published score, minutes, seeds
    ("dqn/cartpole", "CartPole-v1", 490, 50_000, Published(500.0, 0.0, 50_000), 0.4, 20),
    ("dqn/acrobot", "Acrobot-v1", -80, 100_000, Published(-76.639, 11.752, 100_000), 2.5, 20),
    ("dqn/mountain_car", "MountainCar-v0", -105, 120_000, Published(-100.849, 9.925, 120_000), 1.1, 20),
    ("dqn/lunar_lander", "LunarLander-v3", 200, 100_000, Published(154.382, 79.241, 100_000), 4, 10),
    ("dqn/cartpole_quantiles", "CartPole-v1", 495, 50_000, Published(500.0, 0.0, 50_000), 1.5, 20),
    ("dqn/acrobot_quantiles", "Acrobot-v1", -72, 100_000, Published(-69.135, 9.967, 100_000), 6, 10),
    ("dqn/lunar_lander_prioritized", "LunarLander-v3", 225, 100_000, Published(70.236, 225.491, 100_000), 6, 10),
    (
        "dqn/bit_flipping",
        "rl_training.envs.goals.bit_flipping:BitFlipping-v0",
        -7,
        10_000,
        Published(-6.5, 1.94, 10_000, OPTIMUM),
        0.5,
        5,
    ),
    ("dqn/taxi_masked", "Taxi-v4", 7.8, 50_000, Published(7.93, 2.589, 50_000, OPTIMUM), 1, 10),
    ("sac/pendulum", "Pendulum-v1", -160, 20_000, Published(-156.995, 88.714, 20_000), 1.3, 20),
    ("sac/mountain_car_continuous", "MountainCarContinuous-v0", 94, 50_000, Published(94.679, 1.134, 50_000), 3.2, 10),
    (
        "sac/lunar_lander_continuous",
        "LunarLanderContinuous-v3",
        200,
        100_000,
        Published(260.390, 65.467, 500_000),
        5,
        10,
    ),
    ("td3/pendulum", "Pendulum-v1", -155, 20_000, Published(-151.855, 90.227, 20_000), 1.3, 5),
    (
        "td3/lunar_lander_continuous",
        "LunarLanderContinuous-v3",
        220,
        100_000,
        Published(207.451, 67.562, 300_000),
        5,
        5,
    ),
    ("tqc/pendulum", "Pendulum-v1", -150, 20_000, Published(-170.67, 96.58, 20_000, HUB), 2.5, 5),
    (
        "tqc/lunar_lander_continuous",
        "LunarLanderContinuous-v3",
        220,
        100_000,
        Published(277.956, 25.466, 500_000),
        10,
        5,
    ),
    ("ppo/cartpole", "CartPole-v1", 490, 100_000, Published(500.0, 0.0, 100_000), 0.1, 20),
    ("ppo/acrobot", "Acrobot-v1", -78, 1_000_000, Published(-73.506, 18.201, 1_000_000), 1.2, 20),
    ("ppo/pendulum", "Pendulum-v1", -175, 100_000, Published(-172.225, 104.159, 100_000), 0.2, 20),
    ("ppo/lunar_lander", "LunarLander-v3", 245, 1_000_000, Published(242.119, 31.823, 1_000_000), 1.5, 20),
    ("ppo/mountain_car_continuous", "MountainCarContinuous-v0", 90, 100_000, Published(88.343, 2.572, 20_000), 0.1, 20),
    ("ppo/cartpole_native", "CartPole-v1", 490, 2_000_000, Published(500.0, 0.0, 100_000), 0.3, 20),
    ("ppo/cartpole_no_velocity", "CartPole-v1", 500, 100_000, Published(500.0, 0.0, 100_000), 3, 5),
    ("ppo/pendulum_no_velocity", "Pendulum-v1", -217, 100_000, Published(-217.933, 140.094, 100_000), 3, 5),
    (
        "ppo/mountain_car_continuous_no_velocity",
        "MountainCarContinuous-v0",
        91,
        300_000,
        Published(91.469, 1.776, 300_000),
        2,
        5,
    ),
)

_LONG: tuple[Task, ...] = (
    Task(
        "configs/ppo/half_cheetah.yaml",
        "HalfCheetah-v5",
        5_819,
        1_000_000,
        Published(5819.099, 663.53, 1_000_000),
        10,
        3,
        "mujoco",
    ),
    Task(
        "configs/sac/fetch_reach.yaml",
        "gymnasium_robotics:FetchReach-v4",
        -2,
        20_000,
        Published(-1.659, 0.873, 20_000),
        3,
        5,
        "robotics",
    ),
    Task(
        "configs/ppo/hopper.yaml",
        "Hopper-v5",
        2_609,
        1_000_000,
        Published(2609.3, 700.8, 1_000_000, TIANSHOU),
        6,
        3,
        "mujoco",
    ),
    Task(
        "configs/ppo/walker2d.yaml",
        "Walker2d-v5",
        3_589,
        1_000_000,
        Published(3588.5, 756.6, 1_000_000, TIANSHOU),
        6,
        3,
        "mujoco",
    ),
    Task(
        "configs/sac/half_cheetah.yaml",
        "HalfCheetah-v5",
        12_139,
        1_000_000,
        Published(12138.8, 1049.3, 1_000_000, TIANSHOU),
        120,
        1,
        "mujoco",
    ),
    Task(
        "configs/ppo/pong.yaml",
        "ale_py:ALE/Pong-v5",
        20,
        2_500_000,
        Published(20.989, 0.105, 10_000_000),
        120,
        1,
        "pong",
        _PONG,
    ),
    Task(
        "configs/dqn/pong.yaml",
        "ale_py:ALE/Pong-v5",
        18,
        1_000_000,
        Published(20.602, 0.613, 10_000_000),
        120,
        1,
        "pong",
    ),
)

TASKS = (
    *(
        Task(f"configs/{config}.yaml", env_id, bar, steps, published, minutes, seeds)
        for config, env_id, bar, steps, published, minutes, seeds in _TABLE
    ),
    *_LONG,
)
"""All tasks, in the order of the table."""
