"""Warnings about training that goes bad, as a run's `metadata.json`, its summary and its tag in MLflow hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from typing_extensions import TypedDict

from rl_training.state_checks import Count

HEALTH = "health"
"""The key of the warnings in `metadata.json` and in a summary, and the name of the tag in MLflow."""

Kind = Literal[
    "evaluation_fell",
    "exploration_collapsed",
    "values_worse_than_constant",
    "q_values_diverged",
    "returns_never_differ",
]
"""The kinds of warnings; `health/KIND` is the metric of a kind."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every kind of warning."""

Text = Annotated[str, Field(max_length=2_000)]


class HealthWarningForm(TypedDict):
    """A warning in JSON."""

    kind: Kind
    since: Count
    step: Count
    seen: Text
    advice: Text


@dataclass(frozen=True)
class HealthWarning:
    """A warning that training has gone bad."""

    kind: Kind
    since: int
    """The environment step from which on it is so."""
    step: int
    """The environment step at which it was noticed."""
    seen: str
    """What was seen, with numbers."""
    advice: str
    """What usually helps, with the names of settings."""

    def __str__(self) -> str:
        return f"{self.seen}, since step {self.since:,}; what usually helps: {self.advice}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


def read_health_warnings(record: Mapping[str, Any]) -> list[HealthWarning]:
    """Returns the warnings that hold, from a run's checked metadata or its summary; none for an earlier version's."""
    return [HealthWarning(**fields) for fields in record.get(HEALTH) or ()]


def write_health_warnings(warnings: Iterable[HealthWarning]) -> list[dict[str, Any]]:
    """Returns warnings for JSON, as `read_health_warnings` reads them."""
    return [warning.to_dict() for warning in warnings]
