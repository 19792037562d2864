"""The typed settings that all algorithms share: one file describes one experiment.

Settings are frozen and strict: an unknown key, a wrong type, a value out of range or an invalid combination is an error
before anything is created. Each algorithm adds its own fields in a subclass of `TrainConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rl_training.config.sections import (
    CallbackConfig,
    CheckpointConfig,
    CurriculumStage,
    Device,
    EnvId,
    EvaluationConfig,
    Kwargs,
    LoggingConfig,
    MetricsConfig,
    Name,
    NormalizationConfig,
    NumEnvs,
    PromotionConfig,
    Settings,
    TagName,
    TrackingConfig,
    ValidationConfig,
    WrapperConfig,
)
from rl_training.security.secrets import holds_secret

AUTO = "auto"
"""The `vectorization` that becomes another kind when a run begins."""

NATIVE = ("native", "envpool")
"""The kinds of `vectorization` that step many environments in a single object."""


class Combination(NamedTuple):
    """Settings that are valid by themselves but not together."""

    keys: tuple[str, ...]
    """The dotted keys of these settings, beginning with the one to change."""
    message: str
    """The values that were got, and what to do."""


def refuse_combinations(found: Iterable[Combination]) -> None:
    """Raises the error from which `checking.py` makes a fault for each invalid combination, if there is one."""
    faults = list(found)
    if faults:
        text = "; ".join(f"{combination.keys[0]}: {combination.message}" for combination in faults)
        raise PydanticCustomError("combination", "{text}", {"text": text, "faults": faults})


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
    training_wrappers: tuple[WrapperConfig, ...] = Field(default=(), strict=False)
    """Wrappers of the training environments alone, outside `wrappers`; for example one that shapes the reward."""
    reset_options: Kwargs = Field(default_factory=dict)
    """The `options` of each `reset`."""
    curriculum: Annotated[tuple[CurriculumStage, ...], Field(max_length=1_000)] = Field(default=(), strict=False)
    """Stages that change the training environments by step or by success rate."""
    callbacks: tuple[CallbackConfig, ...] = Field(default=(), strict=False)
    """Callbacks of training, in the order in which they see each event; a bare `module:Class` has no arguments."""
    max_episode_steps: PositiveInt | None = None
    """Truncates episodes at this length instead of the environment's registered limit."""
    num_envs: NumEnvs = 1
    """Training environments that are stepped together."""
    vectorization: Literal["auto", "sync", "async", "split", "ray", "native", "envpool"] = "auto"
    """How environments are stepped. `sync`: all in this process. `async`: each in its own process. `split`: a share in
    this process, and a share in a worker process for each further CPU. `ray`: a share on each CPU of a Ray cluster.
    `native`: all at once, if the environment's id has its own vector environment. `envpool`: in EnvPool's threads.
    `auto`, when a run begins: `native` for 8 or more of Gymnasium's CartPoles as they are, else `sync`."""
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
    """How often training metrics are logged, and whether they are judged."""
    metrics: MetricsConfig = MetricsConfig()
    """Which numbers of the environment are logged."""
    tracking: TrackingConfig = TrackingConfig()
    """Where metrics are sent, beside MLflow."""
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

    @property
    def replaces_goals(self) -> bool:
        """Whether training computes rewards for other goals than those that the environment has set."""
        return False

    @property
    def mask_key(self) -> str | None:
        """The key of observations that holds the action mask; None if no mask is applied."""
        return None

    @property
    def masks_in_infos(self) -> bool:
        """Whether action masks come from infos; see `config.action_mask`."""
        return False

    def for_evaluation(self) -> Self:
        """Returns the settings whose environment is that of evaluation: no training wrappers and no curriculum.

        The result names the environment in its own fields, so applying this method to it again changes nothing.
        """
        names = ("env_id", "env_kwargs", "wrappers", "reset_options")
        changed = {name: value for name in names if (value := getattr(self.evaluation, name)) is not None}
        evaluation = self.evaluation.model_copy(update=dict.fromkeys(names))
        return self.model_copy(
            update={**changed, "training_wrappers": (), "curriculum": (), "callbacks": (), "evaluation": evaluation}
        )

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings; algorithms add their own."""
        for key in ("wrappers", "training_wrappers"):
            if self.vectorization in NATIVE and (wrappers := getattr(self, key)):
                names = ", ".join(wrapper.name for wrapper in wrappers)
                yield Combination(
                    (key, "vectorization"),
                    f"got {names} with vectorization: {self.vectorization}, which does not wrap environments one by "
                    f"one; leave the wrappers out, or set vectorization to sync, async or split",
                )
        for key in ("reset_options", "curriculum"):
            if self.vectorization == "envpool" and getattr(self, key):
                yield Combination(
                    (key, "vectorization"),
                    "got it with vectorization: envpool, whose compiled environments take no options and have no "
                    "attributes; leave it out, or set vectorization to sync, async or split",
                )
        yield from self._stage_faults()
        yield from self._hidden_faults()
        yield from self._judging_faults()

    def _stage_faults(self) -> Iterator[Combination]:
        """Yields what is wrong with the conditions and changes of the curriculum's stages."""
        latest = None
        for i, stage in enumerate(self.curriculum):
            here, step = f"curriculum.{i}", stage.from_step
            if step is not None and stage.success_rate is not None:
                yield Combination((f"{here}.success_rate",), "got from_step too, expected one of the two")
            if i and step is None and stage.success_rate is None:
                yield Combination(
                    (here,), "got no condition, expected from_step or success_rate; only stage 0 has none"
                )
            if step is not None and latest is not None and step <= latest:
                yield Combination(
                    (f"{here}.from_step",), f"got {step}, expected more than {latest}, where an earlier stage begins"
                )
            for name in stage.attributes:
                if not name.isidentifier() or name.startswith("__"):
                    yield Combination((f"{here}.attributes.{name}",), "expected the name of a public attribute")
            if not stage.attributes and not stage.reset_options:
                yield Combination((here,), "got a stage that changes nothing, expected attributes or reset_options")
            latest = step if step is not None else latest

    def _hidden_faults(self) -> Iterator[Combination]:
        """Yields secrets where they would be recorded: a replayed episode needs reset options and attributes again."""
        recorded = {"reset_options": self.reset_options, "evaluation.reset_options": self.evaluation.reset_options}
        for i, stage in enumerate(self.curriculum):
            recorded[f"curriculum.{i}.attributes"] = stage.attributes
            recorded[f"curriculum.{i}.reset_options"] = stage.reset_options
        for key, given in recorded.items():
            for name in (name for name, value in (given or {}).items() if holds_secret({name: value})):
                yield Combination(
                    (f"{key}.{name}",),
                    "got a secret (a reference, or a name that says so), which can't be recorded as a resume needs it; "
                    "pass secrets in env_kwargs",
                )

    def _judging_faults(self) -> Iterator[Combination]:
        """Yields settings of evaluation and promotion that have no effect, or that nothing can satisfy."""
        evaluation, promotion = self.evaluation, self.promotion
        for key, wrappers in (("wrappers", self.wrappers), ("evaluation.wrappers", evaluation.wrappers or ())):
            if any(wrapper.name == "EpisodicLife" for wrapper in wrappers):
                yield Combination(
                    (key,),
                    "got EpisodicLife, with which evaluation would play single lives; expected it under "
                    "training_wrappers",
                )
        default = type(evaluation).model_fields["stop_after"].default
        if evaluation.stop_at_return is None and evaluation.stop_after != default:
            yield Combination(
                ("evaluation.stop_after", "evaluation.stop_at_return"),
                f"got {evaluation.stop_after} without evaluation.stop_at_return; set both, or leave it at {default}",
            )
        best = (1.0 - promotion.confidence) ** (1.0 / promotion.episodes)
        if promotion.success_floor is not None and promotion.success_floor > best:
            yield Combination(
                ("promotion.success_floor", "promotion.episodes", "promotion.confidence"),
                f"got {promotion.success_floor}, expected at most {best:.4f}: the lower bound of {promotion.episodes} "
                f"successes in {promotion.episodes} episodes at confidence {promotion.confidence}; raise "
                f"promotion.episodes",
            )

    @model_validator(mode="after")
    def _combinations_work(self) -> Self:
        refuse_combinations(self.combinations())
        return self
