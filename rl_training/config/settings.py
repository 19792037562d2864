"""The typed settings that every algorithm shares: one file is one experiment.

Frozen and strict: an unknown key, a wrong type, a value out of range or a combination that can't work is an error
before anything is made. Each algorithm adds its own fields in a subclass of `TrainConfig`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt


class Settings(BaseModel):
    """Base of every settings type: frozen, no unknown keys, no silent NaN, descriptions from the field docstrings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_default=True
    )


class WrapperConfig(Settings):
    """An environment wrapper, applied in the order given, innermost first."""

    name: str
    """A wrapper of `gymnasium.wrappers` by its class name, or `module:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the wrapper."""


class NormalizationConfig(Settings):
    """Running normalisation of observations and rewards."""

    observation: bool = False
    """Subtract the running mean of each observation feature and divide by its running deviation."""
    reward: bool = False
    """Divide rewards by the running deviation of the discounted return (no mean is subtracted)."""
    clip: float = Field(default=10.0, gt=0)
    """Normalised values are cut to [-clip, clip]."""


class LoggingConfig(Settings):
    """How often training metrics are recorded."""

    every: PositiveInt = 1_000
    """Environment steps between two records of training metrics (the first update at or after each multiple)."""


class EvaluationConfig(Settings):
    """Periodic evaluation, in environments and with seeds of its own, and the held-out one at the end."""

    every: PositiveInt = 10_000
    """Environment steps between two evaluations."""
    episodes: PositiveInt = 10
    """Episodes of each periodic evaluation, the same seeds each time."""
    final_episodes: PositiveInt = 100
    """Episodes of the held-out evaluation after training, on seeds that no periodic evaluation uses."""
    seed: NonNegativeInt = 0
    """Seed of the lists of episode seeds; independent of the training seed."""
    num_envs: PositiveInt = 8
    """Environments that play the episodes side by side; the result does not depend on it."""
    max_episode_steps: PositiveInt = 10_000
    """An evaluation episode longer than this is cut, counted, and reported as cut."""


class CheckpointConfig(Settings):
    """How often the training state is saved, and how many saves are kept."""

    every: PositiveInt = 10_000
    """Environment steps between two checkpoints."""
    keep_last: PositiveInt = 2
    """Newest checkpoints that are kept; the best by periodic evaluation is kept besides."""


class PromotionConfig(Settings):
    """When a candidate becomes the champion of its registered model."""

    enabled: bool = True
    """Whether the train flow offers the run's best checkpoint for promotion."""
    model: str | None = None
    """Name of the registered model; by default derived from the environment's id."""
    floor: float | None = None
    """The lower confidence bound of the candidate's mean return must reach this; None asks for no floor."""
    episodes: int = Field(default=100, ge=20)
    """Episodes that candidate and champion each play, on the same fresh seeds."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Confidence of the one-sided bounds."""
    margin: float = Field(default=0.0, ge=0.0)
    """The lower confidence bound of the paired difference must be above this."""


class ValidationConfig(Settings):
    """How thoroughly the environment is checked before training."""

    episodes: PositiveInt = 2
    """Whole episodes that are played with random actions."""
    max_steps: PositiveInt = 2_000
    """Bound on the steps of each of these episodes."""


class TrainConfig(Settings):
    """What every algorithm's settings have in common."""

    algo: str
    """Name of a registered algorithm."""
    env_id: str
    """A Gymnasium id, with its plug-in module where it has one: `module:Env-v0`."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    wrappers: tuple[WrapperConfig, ...] = ()
    """Wrappers around each environment, innermost first; a bare name stands for a wrapper without arguments."""
    max_episode_steps: PositiveInt | None = None
    """Cuts (truncates) episodes at this length in place of the environment's registered limit."""
    num_envs: PositiveInt = 1
    """Training environments that are stepped together."""
    vectorization: Literal["sync", "async"] = "sync"
    """`sync` steps them in this process, `async` each in a process of its own."""
    normalization: NormalizationConfig = NormalizationConfig()
    """Running normalisation."""
    seed: NonNegativeInt = 0
    """The one seed of all randomness in training."""
    total_timesteps: PositiveInt
    """Environment transitions to train for, summed over all environments."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: PositiveInt = 1
    """Threads of torch; part of the run, since sums differ between thread counts."""
    run_dir: Path | None = None
    """The run's own directory; by default a new one under the home of rl_training."""
    run_name: str | None = None
    """Shown in MLflow; by default made of environment, algorithm and seed."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Words to words, put on the MLflow run; a list of words is taken as words with empty values."""
    experiment: str = "rl_training"
    """Name of the MLflow experiment."""
    job: str | None = None
    """A job trains once at a time: runs that name the same job exclude each other."""
    logging: LoggingConfig = LoggingConfig()
    """Cadence of training metrics."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Periodic and held-out evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Cadence and retention of checkpoints."""
    promotion: PromotionConfig = PromotionConfig()
    """The gate to the champion alias."""
    validation: ValidationConfig = ValidationConfig()
    """Depth of environment validation."""
