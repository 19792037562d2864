"""What `rl-training doctor` finds out about MLflow."""

from __future__ import annotations

import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from rl_training.errors import TrackingError
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import (
    connect,
    explain,
    get_or_create_experiment,
    is_server,
    resolve_tracking_uri,
    strip_credentials,
)
from rl_training.tracking.orphaned_runs import end_if_orphaned, is_orphaned

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

EXPERIMENT = "rl_training_doctor"
"""Has one run, for the round trip of an artifact."""
CLOCK_SECONDS = 5.0
"""By how much a server's clock may differ from this machine's."""
LOOKED_AT = 500
"""Runs and experiments that are looked at, at most."""


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at."""

    check: str
    status: Literal["ok", "note", "problem", "fixed"]
    text: str
    advice: str = ""
    """What to do about it."""

    def line(self) -> str:
        """Returns it for people."""
        return f"{self.status:<8}{self.check}: {self.text}" + (f"; {self.advice}" if self.advice else "")

    def to_dict(self) -> dict[str, str]:
        """Returns it for JSON."""
        return asdict(self)


def check_mlflow(*, fix: bool, gone: Callable[[str], bool] = lambda flow_run_id: False) -> Iterator[CheckResult]:
    """Yields what there is to say about MLflow.

    Args:
        fix: Whether to end the runs that nothing else will end.
        gone: Tells of a Prefect flow run whether it has ended for good or is not known.
    """
    uri = resolve_tracking_uri()
    shown = strip_credentials(uri)
    try:
        client = connect(uri)
        experiments = client.search_experiments(max_results=LOOKED_AT)
    except Exception as error:  # of whatever kind: it is what this is about
        reason = str(error) if isinstance(error, TrackingError) else explain(error, uri)
        advice = "start the server, or set MLFLOW_TRACKING_URI to where it is"
        yield CheckResult("mlflow", "problem", f"{shown} does not answer: {reason}", advice)
        return
    yield CheckResult("mlflow", "ok", f"{shown} answers, with {len(experiments)} experiments")
    if is_server(uri):
        yield from _check_server(uri)
    yield _check_artifacts(client, uri)
    for experiment in experiments:
        if is_server(uri) and urlsplit(experiment.artifact_location).scheme in ("", "file"):
            text = (
                f"those of experiment {experiment.name!r} are at {experiment.artifact_location}, a path of one machine"
            )
            advice = "start the server with --artifacts-destination, and set `experiment` to a new name"
            yield CheckResult("artifacts", "problem", text, advice)
    yield from _check_runs(client, [experiment.experiment_id for experiment in experiments], gone, fix)


def check_clock(server: str, date: str | None) -> CheckResult:
    """Returns how a server's clock compares, by the Date header of its answer."""
    if date is None:
        return CheckResult("clock", "note", f"{server} does not say what time it is")
    difference = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    if abs(difference) <= CLOCK_SECONDS:
        return CheckResult("clock", "ok", f"{server} has the time of this machine")
    which = "ahead of" if difference > 0 else "behind"
    return CheckResult(
        "clock",
        "problem",
        f"{server} is {abs(difference):.0f} s {which} this machine",
        "let both set their clocks by NTP; schedules and heartbeats go by them",
    )


def _check_server(uri: str) -> Iterator[CheckResult]:
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        answer: Any = http_request(get_default_host_creds(uri), "/version", "GET")  # type: ignore[no-untyped-call]
        answer.raise_for_status()
    except Exception as error:
        yield CheckResult("mlflow", "note", f"its version is not to be had: {explain(error, uri)}")
        return
    ours, theirs = mlflow.__version__, answer.text.strip()
    if ours.split(".")[:2] == theirs.split(".")[:2]:
        yield CheckResult("mlflow", "ok", f"server {theirs}, client {ours}")
    else:
        advice = "install the same version in both places (constraints.txt)"
        yield CheckResult("mlflow", "problem", f"server {theirs}, client {ours}", advice)
    yield check_clock("the MLflow server", answer.headers.get("Date"))


def _check_artifacts(client: MlflowClient, uri: str) -> CheckResult:
    try:
        same = _round_trip(client, uri)
    except Exception as error:
        text = f"a file can't be sent and fetched again: {explain(error, uri)}"
        return CheckResult(
            "artifacts", "problem", text, "see the server's log, and whether its artifact store can be written"
        )
    if not same:
        return CheckResult("artifacts", "problem", "a file came back as another one", "see the server's artifact store")
    return CheckResult("artifacts", "ok", "a file was sent and came back")


def _round_trip(client: MlflowClient, uri: str) -> bool:
    """Sends a file and fetches it again, always the same one of the same run; returns whether it came back as sent."""
    word, name = uuid.uuid4().hex, "round-trip.txt"
    experiment = get_or_create_experiment(client, uri, EXPERIMENT)
    runs = client.search_runs([experiment], max_results=1)
    run = runs[0] if runs else client.create_run(experiment, run_name="round trip")
    client.set_terminated(run.info.run_id)
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as back:
        file = Path(here, name)
        file.write_text(word)
        client.log_artifact(run.info.run_id, str(file))
        return Path(client.download_artifacts(run.info.run_id, name, back)).read_text() == word


def _check_runs(
    client: MlflowClient, experiments: list[str], gone: Callable[[str], bool], fix: bool
) -> Iterator[CheckResult]:
    """Yields the runs that are RUNNING in MLflow and that nothing will end any more."""
    found = client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=LOOKED_AT)
    running = [run for run in found if RUN_UID in run.data.tags]
    dead = [(run, why) for run in running if (why := _why_dead(run, gone)) is not None]
    for run, why in dead:
        run_id = run.info.run_id
        text = f"{run_id} is RUNNING in MLflow, and {why}"
        if not fix:
            yield CheckResult("runs", "problem", text, "`rl-training doctor --fix` sets it to KILLED")
            continue
        if not end_if_orphaned(client, run):
            client.set_terminated(run_id, "KILLED")
        yield CheckResult("runs", "fixed", f"{text}: set to KILLED", f"`rl-training resume {run_id}` goes on from it")
    if not dead:
        yield CheckResult("runs", "ok", f"{len(running)} RUNNING in MLflow, none of them known to be dead")


def _why_dead(run: Run, gone: Callable[[str], bool]) -> str | None:
    tags = run.data.tags
    if tags.get("host") == socket.gethostname():
        if is_orphaned(run):
            return "the process that trained it is gone"
        run_dir = Path(tags.get("run_dir", ""))
        return None if run_dir.exists() else f"its directory {run_dir} is gone"
    flow_run = tags.get("prefect.flow_run_id")
    return f"its flow run {flow_run} has ended" if flow_run is not None and gone(flow_run) else None
