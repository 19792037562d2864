"""Reads the run that is to be reproduced, and refuses one that can't be trained again from its record."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.named_modules import list_modules
from rl_training.config.resume_rules import SESSION
from rl_training.config.sections import TrackingConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.run_layout import METRICS, find_run_directory
from rl_training.runs.metadata import find_run_in_home, read_metadata
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.inexact_resumes import INEXACT, explain_inexact
from rl_training.runtime.loop_parts.periodic_evaluation import has_reached_return
from rl_training.security.secrets import REDACTED
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.metric_log import UNCOMPARED
from rl_training.tracking.mlflow_names import FORKED_FROM, make_legal_name
from rl_training.tracking.mlflow_run import find_run
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.shipping.metrics_reader import LineReader

if TYPE_CHECKING:
    from mlflow.entities import Run

REPRODUCES = "reproduces"
"""The tag of a reproduction, and the field of its `metadata.json`: the `run_uid` of the original."""

Points = dict[tuple[int, str], float]
"""The values of metrics, by step and MLflow's form of the name, without those that measure time."""


@dataclass(frozen=True)
class Original:
    """The run that is to be reproduced."""

    checkpoint: Checkpoint
    """The newest good checkpoint, or the one that was named."""
    config: TrainConfig
    """The settings of the reproduction: those of the original, without its directory, job, promotion and sinks."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The content of `metadata.json`; empty if the run's directory is not here."""
    run_dir: Path | None = None
    """The run's directory; None if it is not here."""
    run_id: str | None = None
    """The id of its MLflow run; None if it is not there, or was not looked for."""

    @property
    def is_complete(self) -> bool:
        """Whether its training came to its own end."""
        total = self.checkpoint.num_timesteps >= self.config.total_timesteps
        return total or has_reached_return(self.checkpoint)


def read_original(source: str | PathLike[str], allow_modules: Collection[str]) -> Original:
    """Returns the run that a source names; for the sources see `rl_training.api.train_and_resume.resume`.

    Raises:
        UserError: The run can't be trained again from its record; the message says why.
        ModuleRefused: A received run names a module that is not allowed.
    """
    checkpoint = download_checkpoint(source, wanted="weights")
    run_dir, metadata = _find_directory(checkpoint)
    run = None if run_dir is not None else _find_in_mlflow(checkpoint.run_uid)
    config = config_of_checkpoint(checkpoint, allow_modules=allow_modules)
    _require_reproducible(checkpoint, config, metadata, run)
    changed: dict[str, Any] = {
        "run_dir": None,
        "job": None,
        "tracking": TrackingConfig(),
        "promotion": config.promotion.model_copy(update={"enabled": False}),
        "tags": {**config.tags, REPRODUCES: checkpoint.run_uid},
    }
    return Original(
        checkpoint, config.model_copy(update=changed), metadata, run_dir, None if run is None else run.info.run_id
    )


def read_metrics(run_dir: Path) -> Points:
    """Returns the points of a run's `metrics.jsonl`; a damaged line is left out."""
    return {
        (line["step"], make_legal_name(name)): value
        for line in LineReader(run_dir / METRICS).read_lines()
        for name, value in line["metrics"].items()
        if not name.startswith(UNCOMPARED)
    }


def read_metrics_from_mlflow(run_id: str) -> Points:
    """Returns the points that MLflow has of a run, which are fewer than those of its file if it was long."""
    uri = resolve_tracking_uri(None)
    with translate_mlflow_errors(uri, f"run {run_id}"):
        client = connect(uri)
        names = [name for name in client.get_run(run_id).data.metrics if not name.startswith((UNCOMPARED, "system/"))]
        history = [point for name in names for point in client.get_metric_history(run_id, name)]
    return {(point.step, point.key): point.value for point in history}


def _find_directory(checkpoint: Checkpoint) -> tuple[Path | None, dict[str, Any]]:
    for run_dir in (find_run_directory(checkpoint.path), find_run_in_home(checkpoint.run_uid)):
        with suppress(UserError):
            if run_dir is not None and (metadata := read_metadata(run_dir))["run_uid"] == checkpoint.run_uid:
                return run_dir, metadata
    return None, {}


def _find_in_mlflow(run_uid: str) -> Run | None:
    uri = resolve_tracking_uri(None)
    with translate_mlflow_errors(uri, f"run {run_uid}"):
        return find_run(connect(uri), run_uid)


def _require_reproducible(
    checkpoint: Checkpoint, config: TrainConfig, metadata: dict[str, Any], run: Run | None
) -> None:
    """Checks that the record of a run says all that its training depended on.

    Raises:
        UserError: It does not.
    """
    who = f"run {checkpoint.run_uid} can't be trained again from its record"
    origin = metadata.get("forked_from") or (run is not None and run.data.tags.get(FORKED_FROM))
    if origin:
        first = origin["run_uid"] if isinstance(origin, dict) else origin
        raise UserError(f"{who}: it continues run {first}; reproduce that one")
    inexact = checkpoint.manifest.extra.get(INEXACT) or metadata.get(INEXACT)
    if inexact:
        raise UserError(f"{who}: it is not exact: {'; '.join(map(explain_inexact, inexact))}")
    if REDACTED in checkpoint.config_text():
        raise UserError(
            f"{who}: its settings had plain secrets, which are hidden in the record; train it with references, for "
            f"example ${{env:NAME}}"
        )
    if found := [key for key, module in list_modules(config).items() if module == SESSION]:
        raise UserError(f"{who}: {found[0]} is code of a session ({SESSION}), which no other process has")
