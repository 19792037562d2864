"""The sections of the settings: a class for each nested mapping, and the types of their fields."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    model_validator,
)

from rl_training.config.checking import READ, build_settings, read_python, read_python_settings
from rl_training.config.document import MapNode, convert_word_list, to_plain_data
from rl_training.config.parsing import merge, read_overrides
from rl_training.errors import ConfigError
from rl_training.security.secrets import redact


class Settings(BaseModel):
    """Base of all settings classes: frozen, no unknown keys, no NaN; `config.reference` reads the field docstrings."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        validate_default=True,
        hide_input_in_errors=True,
    )

    bare_field: ClassVar[str | None] = None
    """The field that a bare text sets, if a text may be written in place of a mapping."""
    expected_form: ClassVar[str] = "expected a mapping; leave the key out for defaults"
    """What a message says that the section should be."""

    @model_validator(mode="before")
    @classmethod
    def _read_python(cls, data: Any, info: ValidationInfo) -> Any:
        if info.context is READ or isinstance(data, cls):
            return data
        config = read_python_settings(data, cls)
        if info.mode == "json":
            return config.model_dump(mode="json")
        return {name: getattr(config, name) for name in config.model_fields_set}

    def replace(self, **overrides: Any) -> Self:
        """Returns the settings with some values replaced, checked as a file is.

        Args:
            overrides: The values, nested or by dotted keys: `config.replace(seed=1, evaluation={"every": 5_000})` or
                `config.replace(**{"evaluation.every": 5_000})`. A section keeps its other keys; a list is replaced.

        Raises:
            ConfigError: The result is not valid; the message has a line for each fault.
        """
        own, _ = read_python(self.model_dump(), type(self).__name__)
        assert isinstance(own, MapNode)
        return build_settings(merge(own, convert_word_list(read_overrides(overrides), "tags")), type(self))

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(f"{name}: settings can't be changed; make changed ones with replace({name}=...)")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact({name: value})[name]


class NamesModule:
    """Marks the type of a setting whose text may begin with `module:`, the name of a module that is imported."""


def _match(pattern: str, expected: str) -> AfterValidator:
    """Returns a validator that requires text to match all of `pattern`; `expected` describes it in words."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


_MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_KEY = r"(?![./])(?!.*(//|/\.{0,2}(/|$)))[/\w.\- :]"
"""A pattern for the characters of a name that MLflow takes, in which no part between slashes is empty, `.` or `..`."""
_NAME = r"(?=\S)[^\x00-\x1f\x7f]{1,250}(?<=\S)"

NumEnvs = Annotated[PositiveInt, Field(le=65_536)]
"""A bounded count, because received settings decide how many environments are created."""
Kwargs = Annotated[dict[str, Any], BeforeValidator(to_plain_data)]
EnvId = Annotated[
    str,
    _match(
        rf"({_MODULE}:)?([\w-]+/)?[\w.-]+",
        "an id such as CartPole-v1, namespace/Env-v0 or module:Env-v0",
    ),
    NamesModule(),
]
WrapperName = Annotated[
    str,
    _match(rf"({_MODULE}:)?[A-Za-z_]\w*", "a class of gymnasium.wrappers, or module:Class"),
    NamesModule(),
]
ClassName = Annotated[
    str,
    _match(rf"{_MODULE}:[A-Za-z_]\w*", "module:Class"),
    NamesModule(),
]
SinkName = Annotated[
    str,
    _match(rf"tensorboard|{_MODULE}:[A-Za-z_]\w*", "tensorboard, or module:Class of a sink"),
    NamesModule(),
]
InfoName = Annotated[
    str,
    _match(
        _KEY + r"{1,100}(?<=\S)",
        "the key of a number, of letters, digits and _ - . : / or spaces, as MLflow needs for a metric's name",
    ),
]
Device = Annotated[str, _match(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N")]
Name = Annotated[str, _match(_NAME, "1 to 250 characters, on one line, with no space at either end")]
TagName = Annotated[
    str,
    _match(_KEY + "{1,250}", "a word of letters, digits and _ - . : / or spaces"),
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
    """Class name of a wrapper in `gymnasium.wrappers`, `EpisodicLife`, `FireReset`, or `module:Class`."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Keyword arguments of the wrapper."""


class CallbackConfig(Settings):
    """A callback of training; a bare text is a name."""

    bare_field = "name"

    name: ClassName
    """`module:Class` of a subclass of `rl_training.Callback`."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Keyword arguments of the class."""


class CurriculumStage(Settings):
    """A stage of a curriculum: the changes to the training environments when it begins.

    The first stage without a condition begins with the run. A stage begins once its condition holds, after the stage
    before it.
    """

    from_step: NonNegativeInt | None = None
    """The stage begins at this environment step."""
    success_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """The stage begins when the success rate of the latest `episodes` episodes of the stage before reaches this."""
    episodes: Annotated[PositiveInt, Field(le=100_000)] = 100
    """Number of episodes over which `success_rate` is measured."""
    attributes: Kwargs = Field(default_factory=dict)
    """Attributes of the environment and their values in this stage."""
    reset_options: Kwargs = Field(default_factory=dict)
    """Options for `reset` in this stage, merged over `reset_options`."""


class NormalizationConfig(Settings):
    """Running normalization of observations and rewards."""

    observation: bool = False
    """Subtract the running mean of each observation feature, and divide by its running standard deviation."""
    reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return (no mean is subtracted)."""
    clip: float = Field(default=10.0, gt=0)
    """Normalized values are clipped to [-clip, clip]."""


class LoggingConfig(Settings):
    """How often training metrics are logged, and whether they are judged."""

    every: PositiveInt = 1_000
    """Environment steps between two logs of training metrics (written at the first update from each multiple on)."""
    health_warnings: bool = True
    """Warn when training goes bad: evaluation far below its best for long, exploration or values that collapse."""


class MetricsConfig(Settings):
    """Which numbers of the environment are logged beside returns and lengths."""

    info: Annotated[tuple[InfoName, ...], Field(max_length=100)] = Field(default=(), strict=False)
    """Keys of numbers in the last info of an episode; each is logged as `rollout/info/KEY` and `eval/info/KEY`."""


class TrackingConfig(Settings):
    """Where metrics are sent, beside MLflow."""

    sinks: tuple[SinkName, ...] = Field(default=(), strict=False)
    """`tensorboard`, which writes event files to the run's directory, or `module:Class` of a sink of your own."""


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
    env_id: EnvId | None = None
    """Environment of evaluation; by default the one of training."""
    env_kwargs: Kwargs | None = None
    """Keyword arguments of evaluation's environment; by default those of training."""
    wrappers: tuple[WrapperConfig, ...] | None = Field(default=None, strict=False)
    """Wrappers of evaluation's environment; by default `wrappers`, without `training_wrappers`."""
    reset_options: Kwargs | None = None
    """Options for `reset` in evaluation; by default those of training, without the curriculum's."""
    stop_at_return: float | None = None
    """Training ends once the mean return of periodic evaluations reaches this; null never ends it early."""
    stop_after: PositiveInt = 2
    """Number of periodic evaluations in a row that must reach `stop_at_return`."""
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
    success_floor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Least lower confidence bound of the candidate's success rate; null sets no floor."""
    worst_episode: float | None = None
    """Least return of each episode of the candidate; null sets no floor."""
    episodes: int = Field(default=100, ge=20)
    """Episodes that candidate and champion each play, with the same fresh seeds."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Confidence of the one-sided bounds."""
    allow_cut: bool = False
    """Whether a candidate with episodes that were cut at `evaluation.max_episode_steps` may be promoted."""
    margin: float = Field(default=0.0, ge=0.0)
    """The lower confidence bound of the paired difference must be above this margin."""

    @property
    def least_episodes(self) -> int:
        """The episodes after which a policy that fails in 5 % of them has shown a failure, at `confidence`.

        With fewer, the bounds err more often than stated for policies whose rare failures decide.
        """
        return math.ceil(math.log(1 - self.confidence) / math.log(0.95))


class ValidationConfig(Settings):
    """How thoroughly the environment is checked before training."""

    episodes: PositiveInt = 2
    """Complete episodes that are played with random actions."""
    max_steps: PositiveInt = 2_000
    """Most steps of each of these episodes."""
