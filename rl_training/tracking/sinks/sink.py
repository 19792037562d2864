"""The interface of sinks, which receive a run's metrics in a process beside training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SinkRun:
    """The run as a sink is told about it."""

    run_uid: str
    """The run's identity, which stays the same when the run is resumed, here or elsewhere."""
    name: str
    """The run's name, as in MLflow."""
    run_dir: Path
    """The run's directory, in which a sink that keeps files has a folder of its own."""
    settings: Mapping[str, Any]
    """The resolved settings as JSON values, secrets hidden."""


@dataclass(frozen=True)
class SinkLine:
    """A line of `metrics.jsonl`."""

    number: int
    """Number of lines before this one in the file. Lines without metrics count, so numbers may be missing."""
    event: str
    """`update`, `eval`, `heldout`, or a name chosen by the caller of `log`."""
    step: int
    """Environment steps, which may repeat: an update and an evaluation have a line each."""
    time: float
    """When the line was logged, in seconds since 1970."""
    metrics: Mapping[str, float]
    """Values by metric name; finite, and never empty."""


class StateLost(Exception):
    """What a sink has written before is lost or damaged; raised in `open`, it lets the sink begin again."""


class Sink:
    """Receives the metrics of a run; subclasses override the methods.

    A sink lives in a process of its own, so an error or a wait in it does not reach training. After an error, the
    process makes the sink again and opens it with its last state. The same happens after a kill or a resume. Whatever
    the sink has written after that state is written again, so the sink has to remove it, or to recognise it: by the
    size of a file, or by the lines' numbers.
    """

    def open(self, run: SinkRun, state: Any) -> None:
        """Prepares to write.

        Args:
            run: The run.
            state: What the last recorded `flush` returned, read from JSON. None if the next line is the first one of
                the file: the sink is new, its state is lost, or the run was resumed in another directory.

        Raises:
            StateLost: What was written up to `state` is no longer there; the sink is opened again without a state.
        """

    def write(self, line: SinkLine) -> None:
        """Writes a line; it may be kept in memory until `flush`."""
        raise NotImplementedError

    def flush(self) -> Any:
        """Makes everything written so far durable, and returns the sink's state as JSON values."""

    def close(self) -> None:
        """Ends the sink; called after the last `flush`, and after an error."""
