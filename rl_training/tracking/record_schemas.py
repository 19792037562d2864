"""Types of the JSON files, tags and records that tracking and promotion read back.

Additional keys are kept unless a type says otherwise.
"""

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
    """An attempt at a run, in the tag `attempts`; no other keys are allowed."""

    from_step: Count
    host: str
    pid: int
    created: FiniteFloat
    started_by: NotRequired[str]
    flow_run: NotRequired[str]


class NamedVersion(TypedDict):
    """A version that was registered from a logged model, in the model's tag."""

    name: str
    version: int | str


@with_config(_MORE)
class Undone(TypedDict):
    """The rollback of a version's promotion, in the version's tag."""

    model: str
    version: str
    previous_version: str
    reason: str
    time: str
    promoted_by: str | None


class Dataset(TypedDict):
    """The environment as a dataset of MLflow."""

    name: str
    digest: str
    source_type: str
    source: str


@with_config(_MORE)
class Description(TypedDict):
    """The content of `tracking.json`."""

    run_uid: str
    experiment: str
    run_name: str
    total_timesteps: Step
    from_step: Count
    started_by: NotRequired[str]
    started: Annotated[float, Field(ge=0, lt=2**40, allow_inf_nan=False)]
    process: Process
    params: dict[str, str]
    tags: dict[str, str]
    dataset: Dataset
    forked_from: dict[str, Any] | None


@with_config(_MORE)
class Address(TypedDict):
    """The content of `mlflow.json`."""

    run_id: str
    tracking_uri: str


class Shipped(TypedDict):
    """The content of `shipped.json`."""

    tracking_uri: str
    run_id: str
    offsets: dict[MetricsFile, Count]
    marks: NotRequired[dict[MetricsFile, str]]
    points: Count
    checkpoints: list[str]
    artifacts: dict[str, str]


@with_config(_MORE)
class Status(TypedDict):
    """The content of `status.json`."""

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


Return = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
"""The return of an episode, limited so that sums and differences are finite."""


@with_config(_MORE)
class Episodes(TypedDict):
    """The episodes of an evaluation, in a record."""

    seeds: Annotated[list[Count], Field(min_length=1)]
    returns: Annotated[list[Return], Field(min_length=1)]
    lengths: Annotated[list[Count], Field(min_length=1)]
    cut: Count
    numbers: NotRequired[dict[str, list[FiniteFloat | None]]]


class VerdictForm(TypedDict):
    """The verdict of the gate, in a record."""

    kind: Literal["PROMOTE", "HOLD", "REJECT"]
    reasons: list[str]
    numbers: dict[str, FiniteFloat | None]


@with_config(_MORE)
class CandidateRecord(TypedDict):
    """The candidate in the record of a decision."""

    evaluation: Episodes


@with_config(_MORE)
class Champion(TypedDict):
    """The champion in the record of a decision."""

    version: str
    evaluation: Episodes


@with_config(_MORE)
class LostChampion(TypedDict):
    """A champion that could not be loaded, in the record of a decision."""

    version: str
    reason: str


@with_config(_MORE)
class Decision(TypedDict):
    """The record of a promotion decision."""

    decision_id: str
    time: str
    model: str
    rules: dict[str, Any]
    verdict: VerdictForm
    forced: str | None
    candidate: CandidateRecord
    champion: Champion | None
    lost_champion: NotRequired[LostChampion | None]


class Drop(TypedDict):
    """The result of the test whether a champion has dropped, in a record."""

    dropped: bool
    reasons: list[str]
    numbers: dict[str, FiniteFloat | None]


@with_config(_MORE)
class MonitoringRecord(TypedDict):
    """The record of an evaluation of a registered version."""

    evaluation_id: str
    time: str
    is_champion: bool
    evaluation: Episodes
    drop: Drop
