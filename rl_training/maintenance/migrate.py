"""`rl-training migrate`: copies the embedded MLflow store of the home to an MLflow server.

MLflow's `migrate-filestore` only reads folders, and writes SQLite. Through the server's API runs and models get new
ids, so texts that name old ids are translated. Everything carries its old id in a tag: a migration that was interrupted
finds what it has made, and adds what is missing.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training import run_layout
from rl_training.errors import TrackingError, UserError
from rl_training.maintenance.migration_check import find_differences
from rl_training.maintenance.moved_directories import find_directories, lock_directories
from rl_training.maintenance.moved_ids import MovedIds, Standing
from rl_training.maintenance.moved_models import (
    copy_model,
    copy_registered_model,
    find_model_standing,
    list_models,
    mark_registered_model,
    require_movable,
)
from rl_training.maintenance.moved_runs import copy_run, find_run_standing, finish_run, get_or_create_run, mark_run
from rl_training.maintenance.needed_runs import find_needed
from rl_training.maintenance.run_directories import is_sent
from rl_training.system.paths import URI_VARIABLE, embedded_tracking_uri, runs_root
from rl_training.system.programs import program
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_health import EXPERIMENT as DOCTOR
from rl_training.tracking.mlflow_links import get_ui_hint
from rl_training.tracking.mlflow_store import (
    NOTE,
    connect,
    get_or_create_experiment,
    get_sqlite_path,
    is_server,
    iterate_runs,
    resolve_tracking_uri,
    strip_credentials,
    translate_mlflow_errors,
)
from rl_training.tracking.record_schemas import Address, Shipped

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Migration:
    """What the server has after a migration."""

    tracking_uri: str
    runs: int
    models: int
    """The number of logged models."""
    versions: int
    """The number of registered versions."""
    run_dirs: int
    """The number of run directories that track to the server now."""
    unsent: list[str]
    """Those of them with data that was never sent; `rl-training sync` sends it to the server."""
    lost: list[str]
    """The places, `HOST:DIR`, of run directories that were not found; they still track to the old store."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the migration for JSON."""
        return vars(self).copy()

    def lines(self) -> list[str]:
        """Returns the migration as text."""
        return [
            f"{self.tracking_uri} has {self.runs} runs, {self.models} logged models and {self.versions} versions",
            f"{self.run_dirs} run directories switched to it; keep {URI_VARIABLE}={self.tracking_uri} everywhere",
            f"the old store is unchanged: {embedded_tracking_uri()}",
            *(
                f"not everything of {run_dir} was sent to the old store; to send the rest to the server: "
                f"{program('rl-training')} sync {shlex.quote(run_dir)}"
                for run_dir in self.unsent
            ),
            *(
                f"there is no directory of the run at {place}; if it is elsewhere, it still tracks to the old store: "
                f"put it back or into {runs_root()}, then migrate again"
                for place in self.lost
            ),
        ]


def migrate() -> Migration:
    """Copies the embedded store to the server that `MLFLOW_TRACKING_URI` names, and compares both.

    Raises:
        UserError: No server is named, there is no embedded store, something trains or is sent, or the server has
            registered models of the same names.
        TrackingError: The server can't be reached, or differs after the copy.
    """
    here, there = embedded_tracking_uri(), resolve_tracking_uri()
    if not is_server(there):
        raise UserError(f"got {strip_credentials(there)}, expected an MLflow server; set {URI_VARIABLE} to its address")
    path = get_sqlite_path(here)
    if path is None or not path.exists():
        raise UserError(f"there is no embedded store to migrate: {path} does not exist")
    with ExitStack() as locks, translate_mlflow_errors(there, "the migration"):
        source = connect(here)
        run_dirs, lost = find_directories(source, here)
        lock_directories(run_dirs, locks)
        return _Mover(source, connect(there), here, there).move(run_dirs, lost)


@dataclass(frozen=True)
class _MovedRun:
    """A run of the embedded store."""

    run: Run
    new: Run
    """Its copy."""
    experiment_id: str
    """The copy's experiment."""
    standing: Standing
    """How the copy stood before this migration."""


def _warn_if_overtaken(standing: Standing, what: str) -> None:
    if standing == "overtaken":
        logger.warning("%s has changed in both stores since it was copied; the server's stays as it is", what)


class _Mover:
    """Copies one store to another.

    Args:
        source: Client of the embedded store.
        target: Client of the server.
        here: The URI of the embedded store.
        there: The URI of the server.
    """

    def __init__(self, source: MlflowClient, target: MlflowClient, here: str, there: str) -> None:
        self.source, self.target, self.here, self.there = source, target, here, there
        self.ids = MovedIds()

    def move(self, run_dirs: list[Path], lost: list[str]) -> Migration:
        registered = list(self.source.search_registered_models())
        versions = [version for model in registered for version in require_movable(self.source, self.target, model)]
        moved = self._move_runs()
        models = self._move_models(moved)
        changed_runs = [each for each in moved if each.standing == "changed"]
        for each in changed_runs:
            finish_run(self.target, each.run, each.new, self.ids)
        changed_models = self._copy_registered_models(registered)
        self._compare(changed_runs, changed_models)
        for run_dir in run_dirs:
            self._redirect(run_dir)
        unsent = [str(run_dir) for run_dir in run_dirs if self._has_unsent(run_dir)]
        return Migration(strip_credentials(self.there), len(moved), models, len(versions), len(run_dirs), unsent, lost)

    def _move_runs(self) -> list[_MovedRun]:
        """Copies all runs except for their tags."""
        moved, needed = [], find_needed(self.source).run_ids
        for experiment in self.source.search_experiments():
            if experiment.name == DOCTOR:
                continue
            runs = list(iterate_runs(self.source, [experiment.experiment_id]))
            deleted = [self.source.get_run(run_id) for run_id in needed - {run.info.run_id for run in runs}]
            runs += [run for run in deleted if run.info.experiment_id == experiment.experiment_id]
            if not runs:
                continue
            note = experiment.tags.get(NOTE, "")
            new_experiment = get_or_create_experiment(self.target, self.there, experiment.name, note)
            for run in runs:
                new = get_or_create_run(self.target, new_experiment, run)
                self.ids.runs[run.info.run_id] = new.info.run_id
                standing = find_run_standing(self.source, run, new)
                _warn_if_overtaken(standing, f"run {run.info.run_id}, which is {new.info.run_id} there,")
                if standing == "changed":
                    logger.info("moving run %s (%s)", run.info.run_id, run.info.run_name)
                    copy_run(self.source, self.target, run, new)
                moved.append(_MovedRun(run, new, new_experiment, standing))
        return moved

    def _move_models(self, moved: list[_MovedRun]) -> int:
        for each in moved:
            info = each.run.info
            for model in list_models(self.source, info.experiment_id, f"source_run_id = '{info.run_id}'"):
                new_id = copy_model(self.target, self.here, each.experiment_id, model, self.ids)
                self.ids.models[model.model_id] = new_id
        return len(self.ids.models)

    def _copy_registered_models(self, models: list[RegisteredModel]) -> list[str]:
        """Copies registered models unless nothing has changed; returns the names of those that were copied."""
        copied = []
        for model in models:
            standing = find_model_standing(self.source, self.target, model)
            _warn_if_overtaken(standing, f"registered model {model.name}")
            if standing == "changed":
                copy_registered_model(self.source, self.target, model, self.ids)
                copied.append(model.name)
        return copied

    def _compare(self, moved: list[_MovedRun], names: list[str]) -> None:
        """Compares what was copied, and marks it as moved.

        Raises:
            TrackingError: The copy differs.
        """
        runs = [(each.run, self.target.get_run(each.new.info.run_id)) for each in moved]
        for difference in find_differences(self.source, self.target, self.there, runs, names, self.ids):
            raise TrackingError(
                f"the server differs from the embedded store: {difference}",
                "Nothing tracks to the server yet. Run the command again; if the difference stays, report it.",
            )
        for run, new in runs:
            mark_run(self.source, self.target, run, new)
        for name in names:
            mark_registered_model(self.source, self.target, name)

    def _redirect(self, run_dir: Path) -> None:
        """Makes a run directory track to the server, as far as it was sent to the old store."""
        address: Mapping[str, Any] = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
        new_id = self.ids.runs.get(address["run_id"])
        if new_id is None:
            return  # the run was deleted in MLflow
        shown, experiment = strip_credentials(self.there), self.target.get_run(new_id).info.experiment_id
        shipped = json_files.read_json(run_dir / run_layout.SHIPPED, Shipped)
        if shipped is not None:  # first: with another address it counts for nothing
            json_files.write_json(run_dir / run_layout.SHIPPED, {**shipped, "tracking_uri": shown, "run_id": new_id})
        ui = get_ui_hint(self.there, experiment, new_id)
        new = {"run_id": new_id, "experiment_id": experiment, "ui": ui, "tracking_uri": shown}
        json_files.write_json(run_dir / run_layout.MLFLOW, new)

    def _has_unsent(self, run_dir: Path) -> bool:
        """Returns whether the server lacks something of a run directory, which nobody trains or sends."""
        address: Mapping[str, Any] = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
        if address["tracking_uri"] != strip_credentials(self.there):
            return False  # the run was deleted in MLflow
        ended = self.target.get_run(address["run_id"]).info.status != "RUNNING"
        return not (ended and is_sent(run_dir, self.there, address["run_id"]))
