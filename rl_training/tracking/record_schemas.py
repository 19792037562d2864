"""The forms of the files of a run directory that tracking reads back; what they have beside these keys is kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, with_config
from typing_extensions import TypedDict

from rl_training.state_checks import Count

_MORE = ConfigDict(extra="allow")

MetricsFile = Literal["metrics.jsonl", "system_metrics.jsonl"]
"""Names of metrics files that `shipped.json` may contain; each is opened."""

Step = Annotated[int, Field(gt=0, lt=2**53)]


@with_config(_MORE)
class Process(TypedDict):
    """The process that trains a run."""

    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    created: FiniteFloat


class AttemptForm(TypedDict):
    """One of the attempts at a run, in the tag `attempts`."""

    from_step: Count
    host: str
    pid: int
    created: FiniteFloat


class NamedVersion(TypedDict):
    """One of the versions that are made of a logged model, in its tag."""

    name: str
    version: int | str


@with_config(_MORE)
class Undone(TypedDict):
    """The mark of a version whose promotion was rolled back, in its tag."""

    model: str
    version: str
    previous_version: str
    reason: str
    time: str
    promoted_by: str | None


class Dataset(TypedDict):
    """The environment, as MLflow's dataset."""

    name: str
    digest: str
    source_type: str
    source: str


@with_config(_MORE)
class Description(TypedDict):
    """`tracking.json`."""

    run_uid: str
    experiment: str
    run_name: str
    total_timesteps: Step
    from_step: Count
    started: Annotated[float, Field(ge=0, lt=2**40, allow_inf_nan=False)]
    process: Process
    params: dict[str, str]
    tags: dict[str, str]
    dataset: Dataset
    forked_from: dict[str, Any] | None


@with_config(_MORE)
class Address(TypedDict):
    """`mlflow.json`."""

    run_id: str
    tracking_uri: str


class Shipped(TypedDict):
    """`shipped.json`."""

    tracking_uri: str
    run_id: str
    offsets: dict[MetricsFile, Count]
    marks: NotRequired[dict[MetricsFile, str]]
    points: Count
    checkpoints: list[str]
    artifacts: dict[str, str]


@with_config(_MORE)
class Status(TypedDict):
    """`status.json`."""

    status: Literal["FINISHED", "FAILED", "KILLED"]
    stop_reason: str | None
    error: str | None
    time: Annotated[float, Field(ge=0, lt=2**40, allow_inf_nan=False)]


@with_config(_MORE)
class MetricLine(TypedDict):
    """A line of `metrics.jsonl`."""

    event: str
    step: Count
    time: Annotated[float, Field(ge=0, lt=2**40, allow_inf_nan=False)]
    metrics: dict[str, FiniteFloat]


Return = Annotated[float, Field(ge=-1e150, le=1e150, allow_inf_nan=False)]
"""Of an episode; squares of it are still numbers."""


@with_config(_MORE)
class Episodes(TypedDict):
    """An evaluation, in a record."""

    seeds: Annotated[list[Count], Field(min_length=1)]
    returns: Annotated[list[Return], Field(min_length=1)]
    lengths: Annotated[list[Count], Field(min_length=1)]
    cut: Count


class VerdictForm(TypedDict):
    """What the gate decided, in a record."""

    kind: Literal["PROMOTE", "HOLD", "REJECT"]
    reasons: list[str]
    numbers: dict[str, FiniteFloat | None]


@with_config(_MORE)
class Candidate(TypedDict):
    """One side of a decision, in a record."""

    evaluation: Episodes


@with_config(_MORE)
class Champion(TypedDict):
    """The other side."""

    version: str
    evaluation: Episodes


@with_config(_MORE)
class Decision(TypedDict):
    """The record of a promotion's decision."""

    decision_id: str
    time: str
    model: str
    rules: dict[str, Any]
    verdict: VerdictForm
    forced: str | None
    candidate: Candidate
    champion: Champion | None


class Drop(TypedDict):
    """What watching a champion found, in a record."""

    dropped: bool
    reasons: list[str]
    numbers: dict[str, FiniteFloat | None]


@with_config(_MORE)
class MonitoringRecord(TypedDict):
    """The record of an evaluation of a champion."""

    evaluation_id: str
    time: str
    is_champion: bool
    evaluation: Episodes
    drop: Drop
