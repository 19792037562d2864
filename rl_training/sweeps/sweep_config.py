"""The settings of a sweep: one file describes one search, and the runs that it makes are those of ordinary settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from rl_training.config.sections import Kwargs, Name, Settings
from rl_training.config.settings import Combination, refuse_combinations
from rl_training.config.suggestions import find_similar_word
from rl_training.experiment.builtin import SPECS

MethodName = Literal["grid", "random", "tpe", "halving", "population"]
EngineName = Literal["local", "ray", "dask", "work_pool"]
Direction = Literal["maximize", "minimize"]
Interval = tuple[int | float, int | float]

FARTHEST_END = 1e300
"""Largest magnitude of an end of a range: the width of a larger one might not be a number."""

METRICS = tuple(
    f"eval/{name}"
    for name in ("return_mean", "return_std", "ci_low", "ci_high", "length_mean", "success_rate", "raw_return_mean")
)
"""Numbers of a periodic evaluation that a sweep may compare."""
INFO_METRIC = "eval/info/"
"""The beginning of the names of those that `metrics.info` of the base config adds."""


class Parameter(Settings):
    """The values that a sweep tries for one setting; exactly one of `choice`, `range` and `log_range` is given."""

    expected_form = "expected a mapping with choice, range or log_range"

    choice: Annotated[tuple[Any, ...], Field(min_length=1, max_length=100)] | None = Field(default=None, strict=False)
    """The values themselves; null is one too."""
    range: Interval | None = Field(default=None, strict=False)
    """Lowest and highest value, both included; whole numbers if the setting is a whole number."""
    log_range: Interval | None = Field(default=None, strict=False)
    """Lowest and highest value, both above zero; equal ratios are equally likely."""
    when: Annotated[Kwargs, Field(max_length=100)] = Field(default_factory=dict)
    """Settings (dotted keys) and the value, or the list of values, that they must have for this one to be set; the base
    config's value stays otherwise."""

    @field_validator("range", "log_range")
    @classmethod
    def _ends_are_in_order(cls, value: Interval | None) -> Interval | None:
        if value is not None and max(map(abs, value)) > FARTHEST_END:
            raise ValueError(f"expected numbers between -{FARTHEST_END:g} and {FARTHEST_END:g}")
        if value is not None and not value[0] < value[1]:
            raise ValueError(f"expected the lowest value and then a higher one (got {value[0]} and {value[1]})")
        return value

    @field_validator("log_range")
    @classmethod
    def _ends_have_logarithms(cls, value: Interval | None) -> Interval | None:
        if value is not None and value[0] <= 0:
            raise ValueError(f"expected a lowest value above zero (got {value[0]})")
        return value

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        given = self._list_kinds()
        if len(given) != 1:
            raise ValueError(f"expected one of choice, range and log_range (got {' and '.join(given) or 'none'})")
        return self

    @property
    def kind(self) -> str:
        """The one of `choice`, `range` and `log_range` that is given."""
        return self._list_kinds()[0]

    @property
    def ends(self) -> Interval | None:
        """The lowest and the highest value; None for a choice."""
        return self.log_range or self.range

    def _list_kinds(self) -> list[str]:
        return [kind for kind in ("choice", "range", "log_range") if getattr(self, kind) is not None]


class MethodConfig(Settings):
    """How the points of the space are chosen; a bare text is a name."""

    bare_field = "name"

    name: MethodName = "tpe"
    """`grid`, `random`, `tpe` (Optuna), `halving` (successive halving) or `population` (population-based training)."""
    eta: Annotated[PositiveInt, Field(ge=2, le=1_000)] = 3
    """`halving`: one trial in `eta` survives a rung, and a rung is `eta` times as long as the one before."""
    rungs: Annotated[PositiveInt, Field(le=100)] = 3
    """`halving`: the number of rungs, the last of which is `total_timesteps`."""
    interval: PositiveInt | None = None
    """`population`: environment steps between two comparisons of the members; by default a tenth of the total."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """`population`: the share of members that is replaced, by forks of the best ones."""


class PruningConfig(Settings):
    """When a run that does badly is stopped early, by its periodic evaluations."""

    percentile: Annotated[float, Field(gt=0, lt=100)] = 50.0
    """A run stops if its evaluation is below this percentile of those at the same step in the complete rounds."""
    after_trials: PositiveInt = 5
    """Trials that must be complete before any run is stopped."""
    after_steps: NonNegativeInt = 0
    """Environment steps before which no run is stopped."""


class EngineConfig(Settings):
    """What runs the trials; a bare text is a name."""

    bare_field = "name"

    name: EngineName = "local"
    """`local` (processes of this machine), `ray`, `dask`, or `work_pool` (flow runs of a Prefect work pool)."""
    address: str | None = None
    """`ray`, `dask`: the cluster's address; by default one that is started on this machine, on loopback.
    `work_pool`: the deployment of trial-flow, by default `trial-flow/default`."""


class ResourcesConfig(Settings):
    """What each run of a trial gets."""

    cpus: PositiveInt = 1
    """CPUs; the run's own `threads` stay as they are."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs, or a share of one."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory in gigabytes; null sets no limit."""


class ConfirmationConfig(Settings):
    """The training of the best points on seeds that the search has not used, whose result is what is reported."""

    points: Annotated[NonNegativeInt, Field(le=1_000)] = 3
    """Number of best points; 0 for none."""
    seeds: Annotated[PositiveInt, Field(le=1_000)] = 5
    """Seeds a point."""


class SweepConfig(Settings):
    """The settings of a sweep."""

    described_in: ClassVar[str] = "docs/reference/sweeps.md"

    name: Name | None = None
    """Name of the sweep in MLflow; by default the file's name."""
    config: str | Kwargs
    """The base config: a YAML file (relative to the sweep's file), a shipped name, or the settings themselves."""
    overrides: Kwargs = Field(default_factory=dict)
    """Changes to the base config that all trials share, by nested or dotted keys."""
    space: Annotated[dict[str, Parameter], Field(max_length=100)] = Field(default_factory=dict)
    """The values to try, by the dotted key of the setting."""
    method: MethodConfig = MethodConfig()
    """How points are chosen."""
    seed: NonNegativeInt = 0
    """The seed of the search; the seeds of training begin at the base config's `seed`."""
    trials: Annotated[PositiveInt, Field(le=100_000)] = 20
    """Number of points; for a grid, at least as many as it has."""
    seeds: Annotated[PositiveInt, Field(le=1_000)] = 1
    """Runs a point: `seed` to `seed` + `seeds` - 1 of the base config."""
    parallel: Annotated[PositiveInt, Field(le=10_000)] = 2
    """Trials in a round. All trials of a round are chosen before it begins, from the complete rounds before it, so the
    result does not depend on which trial ends first, nor on how many CPUs there are."""
    metric: str = "eval/return_mean"
    """The number of the periodic evaluations that the search compares, such as `eval/success_rate`; the newest value
    counts."""
    direction: Direction = "maximize"
    """Whether more is better."""
    pruning: PruningConfig | None = None
    """When a run is stopped early (`grid`, `random` and `tpe`); null never stops one."""
    resources: ResourcesConfig = ResourcesConfig()
    """What each run gets."""
    engine: EngineConfig = EngineConfig()
    """What runs the trials."""
    confirmation: ConfirmationConfig = ConfirmationConfig()
    """The training of the best points on new seeds."""

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings; `space_checks` finds those with the base config."""
        if not self.space and self.method.name != "grid":
            yield Combination(
                ("space",),
                f"got no settings, expected those that {self.method.name} varies; for one point, set method: grid",
            )
        if self.pruning is not None and self.method.name in ("halving", "population"):
            yield Combination(
                ("pruning", "method"),
                f"got it with method: {self.method.name}, which stops trials itself; leave pruning out",
            )
        if self.method.name == "population" and self.trials < 2:
            yield Combination(("trials", "method"), f"got {self.trials}, expected 2 or more members of the population")
        if self.method.name == "population" and self.seeds != 1:
            yield Combination(
                ("seeds", "method"),
                f"got {self.seeds}, expected 1, because a member of a population is a single run; raise trials instead",
            )

    @classmethod
    def advise_elsewhere(cls, key: str) -> str | None:
        """Returns where a setting of the trials belongs, or None if no built-in algorithm has a setting `key`."""
        if not any(key in spec.config_type.model_fields for spec in SPECS.values()):
            return None
        return f"it is a setting of the trials; write overrides.{key} for all trials, or space.{key} to vary it"

    @field_validator("metric")
    @classmethod
    def _is_evaluated(cls, value: str) -> str:
        if value not in METRICS and not value.startswith(INFO_METRIC):
            close = find_similar_word(value, METRICS)
            hint = f" (did you mean {close}?)" if close else ""
            raise ValueError(f"expected one of {', '.join(METRICS)} and {INFO_METRIC}KEY{hint}")
        return value

    @model_validator(mode="after")
    def _combinations_work(self) -> Self:
        refuse_combinations(self.combinations())
        return self
