"""Finds the runs that a comparison names: by directory, run, experiment or sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_training import run_layout
from rl_training.comparison.recorded_run import RecordedRun, read_directory, read_from_mlflow, read_tags
from rl_training.config.suggestions import find_similar_word
from rl_training.errors import UserError, printable
from rl_training.run_layout import find_run_directory
from rl_training.runs.metadata import find_run_in_home
from rl_training.system.download_directories import discard_downloads
from rl_training.tracking.checkpoint_sources import RunSource, parse_source, read_source
from rl_training.tracking.mlflow_names import KIND, PHASE, SWEEP, SWEEP_UID, TRIAL
from rl_training.tracking.mlflow_run import RUN_ID, RUN_UID, find_run, is_training_run
from rl_training.tracking.mlflow_store import connect, iterate_runs, resolve_tracking_uri, translate_mlflow_errors

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

T = TypeVar("T")


@dataclass(frozen=True)
class LeftOut:
    """A run that takes no part in a comparison."""

    run: str
    reason: str
    """Completes the sentence "it is left out because it ..."."""


@dataclass
class FoundRuns:
    """The runs that sources name."""

    runs: list[RecordedRun] = field(default_factory=list)
    """The runs, in the order of the sources."""
    named: set[str] = field(default_factory=set)
    """The `run_uid` of each run that was named itself, not by an experiment, a sweep or a folder."""
    left_out: list[LeftOut] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)
    """The MLflow runs of the sweeps."""


def flatten_sources(sources: Iterable[Any]) -> list[str]:
    """Returns the texts of sources, some of which may be lists of sources.

    Raises:
        UserError: A source is neither a text, a path, the result of a training, nor a list of those.
    """
    texts: list[str] = []
    for source in sources:
        if isinstance(source, Sequence) and not isinstance(source, str | PathLike):
            texts += flatten_sources(source)
        else:
            texts.append(read_source(source))
    return texts


def find_runs(sources: Sequence[str], metrics: Sequence[str]) -> FoundRuns:
    """Returns the runs that sources name; a run that several of them name is there once.

    Args:
        sources: The directory of a run, or a folder of such directories; an MLflow run id, a `run_uid` or `runs:/ID`;
            the name of an experiment in MLflow; or a sweep, whose confirmed points are its runs.
        metrics: The metrics to read.

    Raises:
        TrackingError: MLflow can't be reached.
        UserError: A source names nothing, or a run that was named can't be read.
    """
    finder = _Finder(metrics)
    with discard_downloads():
        for source in sources:
            finder.add(source)
    return finder.found


class _Finder:
    """Collects the runs of sources; each is read once."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self.found = FoundRuns()
        self._metrics = metrics
        self._seen: set[str] = set()

    def add(self, source: str) -> None:
        path = Path(source)
        if path.is_dir():
            self._add_directory(find_run_directory(path))
        elif path.exists():
            raise UserError(f"{source} is a file; expected the directory of a run, or another source of runs")
        elif RUN_ID.fullmatch(source) and (run_dir := find_run_in_home(source)) is not None:
            self._keep(read_directory(run_dir, self._metrics), named=True)
        else:
            uri = resolve_tracking_uri()
            with translate_mlflow_errors(uri, source):
                self._add_from_mlflow(connect(uri), source)

    def _add_directory(self, directory: Path) -> None:
        if (directory / run_layout.METADATA).exists():
            self._keep(read_directory(directory, self._metrics), named=True)
            return
        inside = [path for path in sorted(directory.iterdir()) if (path / run_layout.METADATA).exists()]
        if not inside:
            raise UserError(f"{directory} holds no run: neither it nor a folder in it has {run_layout.METADATA}")
        kept = self._leave_out_searches(str(directory), [(read_tags(path), path) for path in inside])
        for path in kept:
            self._try(str(path), partial(read_directory, path, self._metrics))

    def _add_from_mlflow(self, client: MlflowClient, source: str) -> None:
        if not RUN_ID.fullmatch(source) and not source.startswith("runs:/"):
            self._add_experiment(client, source)
            return
        parsed = parse_source(source)
        run = find_run(client, parsed.run_id) if isinstance(parsed, RunSource) else None
        if run is None:
            raise UserError(f"{source}: neither MLflow nor the home of rl_training has such a run or sweep")
        if run.data.tags.get(KIND) == SWEEP:
            self._add_sweep(client, run)
        elif is_training_run(run):
            self._keep(read_from_mlflow(client, run, self._metrics), named=True)
        else:
            kind = printable(run.data.tags.get(KIND, "foreign"))
            raise UserError(f"{source} is a {kind} run; expected a training run, an experiment or a sweep")

    def _add_experiment(self, client: MlflowClient, name: str) -> None:
        runs = [(run.data.tags, run) for run in list_experiment(client, name)]
        self._add_all(client, self._leave_out_searches(printable(name), runs))

    def _add_sweep(self, client: MlflowClient, sweep: Run) -> None:
        uid = sweep.data.tags.get(RUN_UID, "")
        if not RUN_ID.fullmatch(uid):
            raise UserError(f"run {sweep.info.run_id} is the page of a sweep, and its {RUN_UID} is damaged")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = [(run.data.tags, run) for run in iterate_runs(client, experiments, f"tags.`{SWEEP_UID}` = '{uid}'")]
        kept = self._leave_out_searches(f"sweep {uid}", runs)
        if not kept:
            raise UserError(
                f"sweep {uid} has confirmed no settings yet; wait for its end, or give it `confirmation.points`"
            )
        self.found.sweeps.append(sweep.info.run_id)
        self._add_all(client, sorted(kept, key=lambda run: str(run.data.tags.get(TRIAL))))

    def _leave_out_searches(self, place: str, tagged: Sequence[tuple[Mapping[str, str], T]]) -> list[T]:
        """Returns the runs, given with their tags, without those of searches among several points.

        Their scores have chosen the points, so the scores of the chosen ones are too good.
        """
        points: dict[str, set[str]] = {}
        for tags, _ in tagged:
            points.setdefault(tags.get(SWEEP_UID, ""), set()).add(tags.get(TRIAL, "").partition("-")[0])
        kept = [run for tags, run in tagged if tags.get(PHASE) != "search" or len(points[tags.get(SWEEP_UID, "")]) == 1]
        if len(kept) < len(tagged):
            reason = "belong to the search of a sweep, whose scores have chosen its settings"
            self.found.left_out.append(LeftOut(f"{len(tagged) - len(kept):,} runs of {place}", reason))
        return kept

    def _add_all(self, client: MlflowClient, runs: Iterable[Run]) -> None:
        for run in runs:
            self._try(f"run {run.info.run_id}", partial(read_from_mlflow, client, run, self._metrics))

    def _try(self, name: str, read: Callable[[], RecordedRun]) -> None:
        """Adds a run of several; one that can't be read is left out."""
        try:
            self._keep(read(), named=False)
        except UserError as error:
            self.found.left_out.append(LeftOut(name, f"can't be read: {printable(str(error))}"))

    def _keep(self, run: RecordedRun, *, named: bool) -> None:
        if named:
            self.found.named.add(run.run_uid)
        if run.run_uid not in self._seen:
            self._seen.add(run.run_uid)
            self.found.runs.append(run)


def list_experiment(client: MlflowClient, name: str) -> list[Run]:
    """Returns the training runs of an experiment, the oldest first.

    Raises:
        UserError: MLflow has no such experiment.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        similar = find_similar_word(name, [each.name for each in client.search_experiments()])
        meant = f" (did you mean the experiment {printable(similar)}?)" if similar else ""
        raise UserError(
            f"{name}: got neither a directory nor an experiment in MLflow{meant}; expected the directory of a run, an "
            f"MLflow run id, a run_uid, a sweep, or the name of an experiment"
        )
    return [run for run in iterate_runs(client, [experiment.experiment_id]) if is_training_run(run)]
