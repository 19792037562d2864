"""The cases of `exactness.py`: environments, algorithms and settings; and the table of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import format_row
from benchmarks.resume.changes import ChangeEnvironments, make_curriculum
from rl_training.runtime.callbacks import Callback

BITS = "rl_training.envs.goals.bit_flipping:BitFlipping-v0"
ENVIRONMENTS: dict[str, tuple[str, int | None]] = {
    "CartPole-v1": ("dqn", None),
    "Acrobot-v1": ("dqn", 60),
    "MountainCar-v0": ("dqn", 60),
    "Pendulum-v1": ("sac", 60),
    "MountainCarContinuous-v0": ("sac", 60),
    "LunarLander-v3": ("dqn", None),
    "LunarLanderContinuous-v3": ("sac", None),
    "BipedalWalker-v3": ("sac", 90),
    "HalfCheetah-v5": ("sac", 60),
    "Hopper-v5": ("sac", None),
    "Walker2d-v5": ("sac", None),
    "Ant-v5": ("sac", 60),
    "Humanoid-v5": ("sac", None),
    "Swimmer-v5": ("sac", 60),
    "InvertedPendulum-v5": ("sac", None),
    "InvertedDoublePendulum-v5": ("sac", None),
    "Reacher-v5": ("sac", None),
    "Taxi-v4": ("dqn", 60),
    "FrozenLake-v1": ("dqn", None),
    BITS: ("dqn", None),
}
"""The off-policy algorithm that fits each environment's actions, and a step limit if its episodes are long."""

FURTHER: dict[str, tuple[str, ...]] = {"Pendulum-v1": ("td3", "tqc")}
"""Further off-policy algorithms of an environment, which share the loop and most of their code with the first one."""

COVERED = {"CartPole-v1", "Pendulum-v1", "LunarLander-v3", "LunarLanderContinuous-v3", "HalfCheetah-v5"}
"""One environment of each family and kind of action, which is trained with every variant."""

EVERYWHERE = ("sync", "normalised")
"""The variants with which the other environments are trained."""

ONLY_IN = {
    "native": "CartPole-v1",
    "native-normalised": "CartPole-v1",
    "hindsight": BITS,
    "hindsight-normalised": BITS,
    "masked": "Taxi-v4",
    "masked-normalised": "Taxi-v4",
}
"""The environment of the variants that others can't have: as arrays in Gymnasium, with goals, with action masks."""

ONLY_FOR = {
    "n-step": ("dqn", "sac", "td3", "tqc"),
    "quantiles": ("dqn",),
    "prioritized": ("dqn",),
    "hindsight": ("dqn",),
    "hindsight-normalised": ("dqn",),
    "memory": ("ppo",),
}
"""The algorithms of the variants that others don't have."""

NORMALISED = {"normalization": {"observation": True, "reward": True}}
FRAMES = {"wrappers": [{"name": "FrameStackObservation", "kwargs": {"stack_size": 3}}, {"name": "FlattenObservation"}]}
VARIANTS: dict[str, dict[str, Any]] = {
    "sync": {},
    "normalised": NORMALISED,
    "async": {"vectorization": "async"},
    "frames": FRAMES,
    "n-step": {"n_step": 3},
    "quantiles": {"quantiles": 8},
    "prioritized": {"prioritized_replay": {}},
    "hindsight": {"hindsight": {}},
    "hindsight-normalised": {"hindsight": {}, **NORMALISED},
    "masked": {"action_mask": "info"},
    "masked-normalised": {"action_mask": "info", "vectorization": "async", **NORMALISED},
    "memory": {"network": {"hidden": [16], "recurrent": "lstm", "recurrent_size": 8}, "sequence_length": 8},
    "changed": {
        "training_wrappers": [{"name": "ClipReward", "kwargs": {"min_reward": -1.0, "max_reward": 1.0}}],
        "reset_options": {"low": -0.02, "high": 0.02, "x_init": 1.0, "y_init": 0.5},
        "metrics": {"info": ["x_position"]},
    },
    "curriculum": {"vectorization": "async"},
    "all": {"vectorization": "async", "n_step": 3, **NORMALISED, **FRAMES},
    "native": {"vectorization": "native"},
    "native-normalised": {"vectorization": "native", **NORMALISED},
}
"""The settings of each variant in addition to `COMMON`."""

COMMON: dict[str, Any] = {
    "seed": 3,
    "total_timesteps": 400,
    "num_envs": 2,
    "network": {"hidden": [16]},
    "learning_rate_schedule": "linear",
    "logging": {"every": 20},
    "evaluation": {"every": 160, "episodes": 2, "num_envs": 2, "max_episode_steps": 100},
    "checkpoint": {"every": 100},
}
OFF_POLICY: dict[str, Any] = {
    "buffer_size": 200,
    "learning_starts": 60,
    "batch_size": 16,
    "train_freq": 8,
    "gradient_steps": 5,
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 32, "batch_size": 16, "epochs": 2},
    "dqn": {**OFF_POLICY, "target_update_every": 30, "double": True, "dueling": True},
    "sac": OFF_POLICY,
    "td3": OFF_POLICY,
    "tqc": OFF_POLICY,
}
SETTINGS = {"common": COMMON, "algorithms": ALGORITHMS, "variants": VARIANTS}
EARLIEST_STOP = 230
"""Environment steps before a stop: in the middle of a rollout, and after the replay buffer has wrapped around."""


@dataclass(frozen=True)
class Case:
    """One environment with one algorithm and one variant of the settings."""

    env_id: str
    algo: str
    variant: str
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; None keeps the environment's own limit."""

    @property
    def name(self) -> str:
        """The name of the case, which is also a valid name for a directory."""
        return f"{self.env_id}-{self.algo}-{self.variant}"

    def callbacks(self) -> list[Callback]:
        """Returns the callbacks of a process that trains the case."""
        return [ChangeEnvironments()] if self.variant == "changed" else []

    def settings(self) -> dict[str, Any]:
        """Returns the settings as they would be in a file."""
        own = {"algo": self.algo, "env_id": self.env_id, "max_episode_steps": self.max_episode_steps}
        variant = {key: value for key, value in VARIANTS[self.variant].items() if key != "n_step" or self.algo != "ppo"}
        stages = {"curriculum": make_curriculum(self.env_id)} if self.variant == "curriculum" else {}
        return {**COMMON, **own, **ALGORITHMS[self.algo], **variant, **stages}


def _make_cases() -> Iterator[Case]:
    for env_id, (off_policy, limit) in ENVIRONMENTS.items():
        for algo in ("ppo", off_policy, *FURTHER.get(env_id, ())):
            for variant in VARIANTS if env_id in COVERED else (*EVERYWHERE, *ONLY_IN):
                if algo in ONLY_FOR.get(variant, ALGORITHMS) and env_id == ONLY_IN.get(variant, env_id):
                    yield Case(env_id, algo, variant, limit)


CASES = tuple(_make_cases())


def format_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns a Markdown table of measured cases, with a row per environment and a column per algorithm.

    Args:
        results: The results as in the JSON file; variants that were not exact are marked.
    """
    algorithms = tuple(ALGORITHMS)
    lines = [
        format_row(["environment", *(name.upper() for name in algorithms)]),
        "|---" * (len(algorithms) + 1) + "|",
    ]
    for env_id in dict.fromkeys(result["env_id"] for result in results):
        cells = [
            ", ".join(
                result["variant"] if result["exact"] else f"**{result['variant']}: not exact**"
                for result in results
                if (result["env_id"], result["algo"]) == (env_id, algo)
            )
            for algo in algorithms
        ]
        lines.append(format_row([f"`{env_id}`", *(cell or "-" for cell in cells)]))
    return "\n".join(lines)
