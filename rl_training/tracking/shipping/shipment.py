"""Sends a run to MLflow piece by piece; sending a piece again duplicates nothing.

A shipment reads nothing but the files of the run directory. It records its progress in `shipped.json`, so that the next
shipment of the run can continue from there. The shipper, which follows a training run, and `sync` both use it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.runs.metadata import read_metadata
from rl_training.tracking import json_files
from rl_training.tracking.attempts import begin_attempt, get_attempt, is_first_attempt, require_newest_attempt
from rl_training.tracking.metric_log import DIFFERENCE
from rl_training.tracking.mlflow_names import MAX_TAG, shorten
from rl_training.tracking.mlflow_run import (
    RunAddress,
    find_or_create_run,
    get_experiment_id,
    get_latest_steps,
    log_description,
    reopen,
    set_status,
    tag_doubts,
)
from rl_training.tracking.mlflow_store import connect, strip_credentials
from rl_training.tracking.record_schemas import Address, Description
from rl_training.tracking.shipping.figures import Figures
from rl_training.tracking.shipping.logged_models import RANKED_BY, get_evaluations, list_queued_models, send_model
from rl_training.tracking.shipping.metrics_reader import MetricsReader, Point
from rl_training.tracking.shipping.run_page import PICTURES, refresh_page
from rl_training.tracking.shipping.upload_progress import UploadProgress, count_unsent, load_progress
from rl_training.tracking.shipping.uploads import (
    compute_fingerprint,
    list_pending_artifacts,
    list_pending_checkpoints,
    send_artifact,
    send_checkpoint,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

BATCH = 1_000
"""Approximate number of points in a request, which is MLflow's own limit."""


@dataclass(frozen=True)
class ShipReport:
    """Reports how much of a run is in MLflow."""

    sent: int
    """Number of metric values in MLflow."""
    unsent: int
    """Number of metric values in the downsampled file that are not in MLflow."""
    message: str
    """Empty if MLflow has everything; else the reason and what to do."""
    run_id: str | None = None


class Shipment:
    """Sends one run to MLflow.

    Args:
        run_dir: The run's directory.
        tracking_uri: The store, resolved.

    Raises:
        TrackingError: The directory does not contain a tracked run.
    """

    def __init__(self, run_dir: Path, tracking_uri: str) -> None:
        self.run_dir, self.uri = run_dir, tracking_uri
        description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
        if description is None:
            if not (run_dir / run_layout.METADATA).exists():
                raise TrackingError(f"{run_dir} holds no run; expected a run's directory")
            if (run_dir / run_layout.TRACKING).exists():
                raise TrackingError(f"{run_dir / run_layout.TRACKING} is damaged; resuming the run writes it again")
            raise TrackingError(f"{run_dir} was trained untracked; start a run with --offline to send it later")
        self.description = description
        self.attempt = get_attempt(description)
        self.step = 0
        """The newest step read."""
        self._figures = Figures(run_dir, description["run_name"])
        self._readers = {
            name: MetricsReader(run_dir / name, description["total_timesteps"])
            for name in (run_layout.METRICS, run_layout.SYSTEM_METRICS)
        }
        self._batches: dict[str, list[Point]] = {}
        self._there: dict[str, int] = {}
        """Last step of each metric that MLflow had at the start, so that repeated steps are not sent twice."""
        self._evaluations: dict[int, Point] = {}
        """Mean returns of the periodic evaluations by step, for the models of the checkpoints at these steps."""
        self._differences: str | None = None
        self._described = self._ended = False

    def open(self, new_run: bool = False) -> RunAddress:
        """Finds or creates the run in MLflow and records its address in `mlflow.json`.

        Args:
            new_run: Whether to create a new run if the known run was deleted.

        Raises:
            RunDeleted: The run was deleted in MLflow and `new_run` is false.
            TrackingError: The experiment was deleted, or the store can't be used.
            MlflowException: The server can't be reached or returns an error.
        """
        self.client: MlflowClient = connect(self.uri)
        shown = strip_credentials(self.uri)
        known = json_files.read_json(self.run_dir / run_layout.MLFLOW, Address)
        known_id = known["run_id"] if known is not None and known["tracking_uri"] == shown else None
        self.address = find_or_create_run(self.client, self.uri, self.description, known_id, new_run)
        json_files.write_json(self.run_dir / run_layout.MLFLOW, {**asdict(self.address), "tracking_uri": shown})
        self.progress: UploadProgress = load_progress(self.run_dir, shown, self.address.run_id)
        return self.address

    def ship(self, status: Callable[[], Mapping[str, Any]] | None = None) -> bool:
        """Sends the next piece: the description, a batch of points, the run's status, a checkpoint, a file, or a model.

        Args:
            status: Returns the content of `status.json`; None while the run is training.

        Returns:
            Whether there may be more to send.

        Raises:
            AttemptSuperseded: Another training process has resumed the run.
            Exception: Any error of MLflow or the network; the next call sends the piece again.
        """
        if not self._described:
            run = self.client.get_run(self.address.run_id)
            first = is_first_attempt(run, self.attempt)
            begin_attempt(self.client, run, self.attempt, training=status is None)
            if status is None:  # the run is training; remove the status of an earlier end
                reopen(self.client, run)
            log_description(self.client, run, self.description, first=first)
            refresh_page(self.client, self.address.run_id)
            # The run may have begun on another machine. Lines after the recorded offset may also have been sent,
            # lost in a power cut, and written again with other times.
            self._there = get_latest_steps(self.client, run)
            if not self.progress.offsets:
                self._evaluations = get_evaluations(self.client, run)
            self._described = True
            return True
        # Listed first: whoever resumes from a checkpoint in MLflow finds the points before it there too.
        checkpoints = list_pending_checkpoints(self.run_dir, self.progress.checkpoints)
        full = [self._ship_points(name) for name in self._readers]
        if any(full):
            return True
        if status is not None and not self._ended:
            self._require_newest()
            set_status(self.client, self.address.run_id, status())
            refresh_page(self.client, self.address.run_id, sending=True)
            self._ended = True
        self._figures.draw(now=self._ended)
        more = self._ship_checkpoint(checkpoints) or self._ship_artifact() or self._ship_model()
        if self._ended and not more:
            refresh_page(self.client, self.address.run_id)
        return more

    def is_deleted(self) -> bool:
        """Returns whether the run was deleted in MLflow."""
        return get_experiment_id(self.client, self.address.run_id) is None

    def describe_unsent(self) -> str:
        """Returns a description of everything that is not sent yet; empty if MLflow has everything."""
        counts = {
            "metric value": self.report().unsent,
            "checkpoint": len(list_pending_checkpoints(self.run_dir, self.progress.checkpoints)),
            "file": sum(1 for _ in list_pending_artifacts(self.run_dir, self.progress.artifacts)),
            "model": sum(1 for _ in list_queued_models(self.run_dir)),
        }
        words = [f"{count:,} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
        return ", ".join(words) if words or self._ended else "how the run ended"

    def _require_newest(self) -> None:
        require_newest_attempt(self.client, self.address.run_id, self.attempt)

    def report(self, message: str = "") -> ShipReport:
        """Returns how much of the run is in MLflow."""
        offset = self.progress.offsets.get(run_layout.METRICS, 0)
        unsent = count_unsent(self.run_dir, self.description["total_timesteps"], offset)
        return ShipReport(self.progress.points, unsent, message, self.address.run_id)

    def _ship_points(self, name: str) -> bool:
        """Sends the next batch of a metrics file; a batch that failed is sent again unchanged.

        Returns:
            Whether there may be more.
        """
        reader, progress = self._readers[name], self.progress
        if name not in self._batches:
            self._batches[name] = self._read_batch(name)
        points = self._batches[name]
        if points:
            from mlflow.entities import Metric

            self._require_newest()
            metrics = [Metric(point.key, point.value, point.timestamp, point.step) for point in points]
            self.client.log_batch(progress.run_id, metrics=metrics)
        if self._differences is not None:
            self.client.set_tag(progress.run_id, "resume.differences", shorten(self._differences, MAX_TAG))
            self._differences = None
        del self._batches[name]
        if progress.offsets.get(name, 0) < reader.offset:
            progress.offsets[name], progress.marks[name] = reader.offset, reader.mark
            progress.points += len(points)
            progress.save(self.run_dir, sync=False)
        return len(points) >= BATCH

    def _read_batch(self, name: str) -> list[Point]:
        """Returns the next points to send; lines that were sent before only feed the downsampling and the curve."""
        batch: list[Point] = []
        sent = self.progress.offsets.get(name, 0)
        while len(batch) < BATCH and (lines := self._readers[name].read(BATCH - len(batch))):
            for line in lines:
                step = line.content["step"]
                self.step = max(self.step, step)
                self._figures.curve.add(step, {point.key: point.value for point in line.points})
                self._evaluations |= {point.step: point for point in line.points if point.key == RANKED_BY}
                if line.end <= sent:
                    continue
                new = [point for point in line.points if point.step > self._there.get(point.key, -1)]
                self.progress.points += len(line.points) - len(new)
                batch += new
                if line.content["event"] == DIFFERENCE:
                    self._differences = json.dumps({"step": step, **line.content.get("differences", {})})
        return batch

    def _ship_checkpoint(self, pending: Sequence[Path]) -> bool:
        for checkpoint in pending:
            self._require_newest()
            mark = compute_fingerprint(checkpoint)
            if mark is not None and send_checkpoint(self.client, self.address.run_id, self.run_dir, checkpoint):
                self.progress.checkpoints.append(mark)
                self.progress.save(self.run_dir, sync=True)
                return True
        return False

    def _ship_artifact(self) -> bool:
        for name, mark in list_pending_artifacts(self.run_dir, self.progress.artifacts):
            self._require_newest()
            send_artifact(self.client, self.address.run_id, self.run_dir, name)
            if name == run_layout.METADATA:
                tag_doubts(self.client, self.address.run_id, read_metadata(self.run_dir))
            if name == run_layout.METADATA or (name in PICTURES and name not in self.progress.artifacts):
                refresh_page(self.client, self.address.run_id, sending=self._ended)
            self.progress.artifacts[name] = mark
            self.progress.save(self.run_dir, sync=True)
            return True
        return False

    def _ship_model(self) -> bool:
        for queued in list_queued_models(self.run_dir):
            self._require_newest()
            step = int(queued.name.removeprefix(run_layout.STEP))
            evaluation, dataset = self._evaluations.get(step), self.description["dataset"]
            send_model(self.client, self.address.run_id, queued, evaluation, dataset)
            return True
        return False
