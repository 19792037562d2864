"""The typed settings that all algorithms share: one file describes one experiment.

Settings are frozen and strict: an unknown key, a wrong type, a value out of range or an invalid combination is an error
before anything is created. Each algorithm adds its own fields in a subclass of `TrainConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rl_training.config.document import to_plain_data
from rl_training.security.secrets import redact

NATIVE = ("native", "envpool")
"""The kinds of `vectorization` that step many environments in a single object."""


class Settings(BaseModel):
    """Base of all settings classes: frozen, no unknown keys, no NaN, with descriptions from the field docstrings."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
        hide_input_in_errors=True,
    )

    bare_field: ClassVar[str | None] = None
    """The field that a bare text sets, if a text may be written in place of a mapping."""

    @model_validator(mode="before")
    @classmethod
    def _bare_text(cls, data: Any) -> Any:
        return {cls.bare_field: data} if cls.bare_field and isinstance(data, str) else data

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact({name: value})[name]


class NamesModule:
    """Marks the type of a setting whose text may begin with `module:`, which is imported to create an environment."""


class Combination(NamedTuple):
    """Settings that are valid by themselves but not together."""

    keys: tuple[str, ...]
    """The dotted keys of these settings, beginning with the one to change."""
    message: str
    """The values that were got, and what to do."""


def _match(pattern: str, expected: str) -> AfterValidator:
    """Returns a validator that requires text to match all of `pattern`; `expected` describes it in words."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


_NAME = r"(?=\S)[^\x00-\x1f\x7f]{1,250}(?<=\S)"

NumEnvs = Annotated[PositiveInt, Field(le=65_536)]
"""A bounded count, because received settings decide how many environments are created."""
Kwargs = Annotated[dict[str, Any], BeforeValidator(to_plain_data)]
EnvId = Annotated[
    str,
    _match(
        r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:)?([\w-]+/)?[\w.-]+",
        "an id such as CartPole-v1, namespace/Env-v0 or module:Env-v0",
    ),
    NamesModule(),
]
WrapperName = Annotated[
    str,
    _match(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:)?[A-Za-z_]\w*", "a class of gymnasium.wrappers, or module:Class"),
    NamesModule(),
]
Device = Annotated[str, _match(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N")]
Name = Annotated[str, _match(_NAME, "1 to 250 characters, on one line, with no space at either end")]
TagName = Annotated[
    str,
    _match(r"(?![./])(?!.*(//|/\.{0,2}(/|$)))[/\w.\- :]{1,250}", "a word of letters, digits and _ - . : / or spaces"),
]
ModelName = Annotated[
    str,
    _match(
        r"(?!promotion-lock\.)[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,199}(?<=\S)",
        "at most 200 letters, digits and _ - . (MLflow allows no / or : in a model's name), no promotion-lock. prefix",
    ),
]


class WrapperConfig(Settings):
    """An environment wrapper. Wrappers are applied in the given order, innermost first; a bare text is a name."""

    bare_field = "name"

    name: WrapperName
    """Class name of a wrapper in `gymnasium.wrappers`, or `module:Class`."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Keyword arguments of the wrapper."""


class NormalizationConfig(Settings):
    """Running normalization of observations and rewards."""

    observation: bool = False
    """Subtract the running mean of each observation feature, and divide by its running standard deviation."""
    reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return (no mean is subtracted)."""
    clip: float = Field(default=10.0, gt=0)
    """Normalized values are clipped to [-clip, clip]."""


class LoggingConfig(Settings):
    """How often training metrics are logged."""

    every: PositiveInt = 1_000
    """Environment steps between two logs of training metrics (written at the first update from each multiple on)."""


class EvaluationConfig(Settings):
    """Periodic evaluation, with its own environments and seeds, and the held-out evaluation at the end."""

    every: PositiveInt = 10_000
    """Environment steps between two evaluations."""
    episodes: PositiveInt = 10
    """Episodes of each periodic evaluation, with the same seeds each time."""
    final_episodes: PositiveInt = 100
    """Episodes of the held-out evaluation after training, with seeds that no periodic evaluation uses."""
    seed: NonNegativeInt = 0
    """Seed from which the episode seeds are drawn; independent of the training seed."""
    num_envs: Annotated[PositiveInt, Field(le=1024)] = 8
    """Environments that play the episodes in parallel; the result does not depend on their number."""
    max_episode_steps: PositiveInt = 10_000
    """Longest evaluation episode, in steps; a longer episode is cut, counted, and reported as cut."""
    video: bool = True
    """Record a video of the first held-out episode, if the environment can be rendered to arrays (`rgb_array`)."""


class CheckpointConfig(Settings):
    """How often a checkpoint is saved, and how many are kept."""

    every: PositiveInt = 10_000
    """Environment steps between two checkpoints."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints that are kept, in addition to the best by periodic evaluation."""


class PromotionConfig(Settings):
    """When a candidate becomes the champion of its registered model."""

    enabled: bool = True
    """Whether the train flow offers the run's best checkpoint for promotion."""
    model: ModelName | None = None
    """Name of the registered model; by default it is derived from the environment's id."""
    floor: float | None = None
    """Least lower confidence bound of the candidate's mean return; null sets no floor."""
    worst_episode: float | None = None
    """Least return of each episode of the candidate; null sets no floor."""
    episodes: int = Field(default=100, ge=20)
    """Episodes that candidate and champion each play, with the same fresh seeds."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Confidence of the one-sided bounds."""
    margin: float = Field(default=0.0, ge=0.0)
    """The lower confidence bound of the paired difference must be above this margin."""


class ValidationConfig(Settings):
    """How thoroughly the environment is checked before training."""

    episodes: PositiveInt = 2
    """Complete episodes that are played with random actions."""
    max_steps: PositiveInt = 2_000
    """Most steps of each of these episodes."""


class TrainConfig(Settings):
    """The settings that all algorithms share."""

    algo: str
    """Name of a registered algorithm."""
    env_id: EnvId
    """A Gymnasium id, with the module that registers it if there is one: `module:Env-v0`."""
    env_kwargs: Kwargs = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    wrappers: tuple[WrapperConfig, ...] = Field(default=(), strict=False)
    """Wrappers of each environment, innermost first; a bare name is a wrapper without arguments."""
    max_episode_steps: PositiveInt | None = None
    """Truncates episodes at this length instead of the environment's registered limit."""
    num_envs: NumEnvs = 1
    """Training environments that are stepped together."""
    vectorization: Literal["sync", "async", "split", "native", "envpool"] = "sync"
    """How environments are stepped. `sync`: all in this process. `async`: each in its own process. `split`: a share in
    this process, and a share in a worker process for each further CPU. `native`: all at once, if the environment's id
    has its own vector environment. `envpool`: in EnvPool's threads."""
    normalization: NormalizationConfig = NormalizationConfig()
    """Running normalization."""
    seed: NonNegativeInt = 0
    """The seed of all randomness in training."""
    total_timesteps: PositiveInt
    """Environment steps to train for, summed over all environments."""
    device: Device = "auto"
    """Device for learning. `auto` uses a GPU, if there is one, for images and wide networks."""
    threads: PositiveInt = 1
    """Threads that large computations may use. Changing the number makes a resume inexact, because sums may differ."""
    run_dir: Path | None = Field(default=None, strict=False)
    """Directory of the run, stored as an absolute path; by default a new one in the home of rl_training."""
    run_name: Name | None = None
    """Name of the run in MLflow; by default it is made of environment, algorithm and seed."""
    tags: dict[TagName, Annotated[str, Field(max_length=5_000)]] = Field(default_factory=dict)
    """Tags of the MLflow run, as a mapping of names to values; a list of names gives them empty values."""
    experiment: Name = "rl_training"
    """Name of the MLflow experiment."""
    job: Name | None = None
    """Name of a job. Of several runs with the same job, only one trains at a time."""
    logging: LoggingConfig = LoggingConfig()
    """How often training metrics are logged."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Periodic and held-out evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """How often checkpoints are saved, and how many are kept."""
    promotion: PromotionConfig = PromotionConfig()
    """When a candidate becomes the champion."""
    validation: ValidationConfig = ValidationConfig()
    """How thoroughly the environment is checked."""

    @field_validator("tags", mode="before")
    @classmethod
    def _words_to_mapping(cls, value: Any) -> Any:
        listed = isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
        return dict.fromkeys(value, "") if listed else value

    @field_validator("run_dir")
    @classmethod
    def _make_absolute(cls, value: Path | None) -> Path | None:
        try:
            return None if value is None else value.expanduser().absolute()
        except RuntimeError as error:
            raise ValueError(f"expected a path; {error}") from None

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings; algorithms add their own."""
        if self.vectorization in NATIVE and self.wrappers:
            names = ", ".join(wrapper.name for wrapper in self.wrappers)
            yield Combination(
                ("wrappers", "vectorization"),
                f"got {names} with vectorization: {self.vectorization}, which does not wrap environments one by one; "
                f"leave the wrappers out, or set vectorization to sync, async or split",
            )

    @model_validator(mode="after")
    def _combinations_work(self) -> Self:
        found = list(self.combinations())
        if found:
            text = "; ".join(f"{combination.keys[0]}: {combination.message}" for combination in found)
            raise PydanticCustomError("combination", "{text}", {"text": text, "faults": found})
        return self
