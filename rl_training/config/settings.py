"""The typed settings that every algorithm shares: one file is one experiment.

Frozen and strict: an unknown key, a wrong type, a value out of range or a combination that can't work is an error
before anything is made. Each algorithm adds its own fields in a subclass of `TrainConfig`.
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

from rl_training.config.document import plain_data
from rl_training.security.secrets import redact

NATIVE = ("native", "envpool")
"""The kinds of `vectorization` that step many environments in one object, not each by itself."""


class Settings(BaseModel):
    """Base of every settings type: frozen, no unknown keys, no silent NaN, descriptions from the field docstrings."""

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
    """The field that a bare text stands for, where one may be written in place of a mapping."""

    @model_validator(mode="before")
    @classmethod
    def _bare_text(cls, data: Any) -> Any:
        return {cls.bare_field: data} if cls.bare_field and isinstance(data, str) else data

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact({name: value})[name]


class NamesModule:
    """Marks the type of a setting whose text may begin with `module:`, which is imported to make an environment."""


class Combination(NamedTuple):
    """Settings that are each in order and can't work together."""

    keys: tuple[str, ...]
    """The dotted keys concerned, the one to change first."""
    message: str
    """What was got, and what to do."""


def _matching(pattern: str, expected: str) -> AfterValidator:
    """Returns a check that text matches `pattern` from end to end; `expected` says so in words."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


_NAME = r"(?=\S)[^\x00-\x1f\x7f]{1,250}(?<=\S)"

NumEnvs = Annotated[PositiveInt, Field(le=65_536)]
"""Bounded, since settings that somebody else has written say how many environments are made."""
Kwargs = Annotated[dict[str, Any], BeforeValidator(plain_data)]
EnvId = Annotated[
    str,
    _matching(
        r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:)?([\w-]+/)?[\w.-]+",
        "an id such as CartPole-v1, namespace/Env-v0 or module:Env-v0",
    ),
    NamesModule(),
]
WrapperName = Annotated[
    str,
    _matching(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:)?[A-Za-z_]\w*", "a class of gymnasium.wrappers, or module:Class"),
    NamesModule(),
]
Device = Annotated[str, _matching(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N")]
Name = Annotated[str, _matching(_NAME, "1 to 250 characters, on one line, with no space at either end")]
TagName = Annotated[
    str,
    _matching(
        r"(?![./])(?!.*(//|/\.{0,2}(/|$)))[/\w.\- :]{1,250}", "a word of letters, digits and _ - . : / or spaces"
    ),
]
ModelName = Annotated[
    str,
    _matching(
        r"(?!promotion-lock\.)[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,199}(?<=\S)",
        "at most 200 letters, digits and _ - . (MLflow takes no / or : in a model's name), no promotion-lock. in front",
    ),
]


class WrapperConfig(Settings):
    """An environment wrapper, applied in the order given, innermost first; a bare text is its name."""

    bare_field = "name"

    name: WrapperName
    """A wrapper of `gymnasium.wrappers` by its class name, or `module:Class`."""
    kwargs: Kwargs = Field(default_factory=dict)
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
    num_envs: Annotated[PositiveInt, Field(le=1024)] = 8
    """Environments that play the episodes side by side; the result does not depend on it."""
    max_episode_steps: PositiveInt = 10_000
    """An evaluation episode longer than this is cut, counted, and reported as cut."""
    video: bool = True
    """Film the first held-out episode, where the environment can be rendered to arrays (`rgb_array`)."""


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
    model: ModelName | None = None
    """Name of the registered model; by default derived from the environment's id."""
    floor: float | None = None
    """The lower confidence bound of the candidate's mean return must reach this; null asks for no floor."""
    worst_episode: float | None = None
    """No episode of the candidate may return less than this; null asks for no such floor."""
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
    env_id: EnvId
    """A Gymnasium id, with its plug-in module where it has one: `module:Env-v0`."""
    env_kwargs: Kwargs = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    wrappers: tuple[WrapperConfig, ...] = Field(default=(), strict=False)
    """Wrappers around each environment, innermost first; a bare name stands for a wrapper without arguments."""
    max_episode_steps: PositiveInt | None = None
    """Cuts (truncates) episodes at this length in place of the environment's registered limit."""
    num_envs: NumEnvs = 1
    """Training environments that are stepped together."""
    vectorization: Literal["sync", "async", "split", "native", "envpool"] = "sync"
    """`sync` steps them in this process, `async` each in a process of its own, `split` a share of them in this process
    and one in a worker process for each further CPU, `native` all at once where the environment's id has a vector
    environment of its own, `envpool` in the threads of EnvPool."""
    normalization: NormalizationConfig = NormalizationConfig()
    """Running normalisation."""
    seed: NonNegativeInt = 0
    """The one seed of all randomness in training."""
    total_timesteps: PositiveInt
    """Environment transitions to train for, summed over all environments."""
    device: Device = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`; `auto` is a GPU for images and wide networks, where there is one."""
    threads: PositiveInt = 1
    """Threads that learning may use where it is large enough; part of the run, since sums may differ between counts."""
    run_dir: Path | None = Field(default=None, strict=False)
    """The run's own directory, kept as an absolute path; by default a new one under the home of rl_training."""
    run_name: Name | None = None
    """Shown in MLflow; by default made of environment, algorithm and seed."""
    tags: dict[TagName, Annotated[str, Field(max_length=5_000)]] = Field(default_factory=dict)
    """Words to words, put on the MLflow run; a list of words is taken as words with empty values."""
    experiment: Name = "rl_training"
    """Name of the MLflow experiment."""
    job: Name | None = None
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

    @field_validator("tags", mode="before")
    @classmethod
    def _words_to_mapping(cls, value: Any) -> Any:
        listed = isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
        return dict.fromkeys(value, "") if listed else value

    @field_validator("run_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        try:
            return None if value is None else value.expanduser().absolute()
        except RuntimeError as error:
            raise ValueError(f"expected a path; {error}") from None

    def combinations(self) -> Iterator[Combination]:
        """Yields each combination of these settings that can't work; algorithms add theirs."""
        if self.vectorization in NATIVE and self.wrappers:
            names = ", ".join(wrapper.name for wrapper in self.wrappers)
            yield Combination(
                ("wrappers", "vectorization"),
                f"got {names} with vectorization: {self.vectorization}, whose environments are not wrapped one by one; "
                f"leave the wrappers out, or set vectorization to sync, async or split",
            )

    @model_validator(mode="after")
    def _combinations_work(self) -> Self:
        found = list(self.combinations())
        if found:
            text = "; ".join(f"{combination.keys[0]}: {combination.message}" for combination in found)
            raise PydanticCustomError("combination", "{text}", {"text": text, "faults": found})
        return self
