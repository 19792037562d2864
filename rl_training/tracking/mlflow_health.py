"""The checks of MLflow that `rl-training doctor` makes."""

from __future__ import annotations

import shlex
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
from rl_training.tracking.mlflow_names import FLOW_RUN
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import (
    connect,
    explain,
    get_or_create_experiment,
    is_refusal,
    is_server,
    resolve_tracking_uri,
    strip_credentials,
)
from rl_training.tracking.orphaned_runs import end_if_orphaned, is_orphaned

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

EXPERIMENT = "rl_training_doctor"
"""Experiment with a single run, which is used to send an artifact and fetch it again."""
CLOCK_SECONDS = 5.0
"""Largest accepted difference between the clocks of a server and this machine."""
LOOKED_AT = 500
"""Limit on the number of runs and of experiments that are checked."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: str
    status: Literal["ok", "note", "problem", "fixed"]
    text: str
    advice: str = ""
    """What the user can do about a problem."""

    def line(self) -> str:
        """Returns the result as a line of text."""
        return f"{self.status:<8}{self.check}: {self.text}" + (f"; {self.advice}" if self.advice else "")

    def to_dict(self) -> dict[str, str]:
        """Returns the result for JSON."""
        return asdict(self)


def check_mlflow(*, fix: bool, gone: Callable[[str], bool] = lambda flow_run_id: False) -> Iterator[CheckResult]:
    """Checks MLflow and yields the results.

    Args:
        fix: Whether to end orphaned runs.
        gone: Returns whether the Prefect flow run with an id has ended for good or does not exist.
    """
    uri = resolve_tracking_uri()
    shown = strip_credentials(uri)
    try:
        client = connect(uri)
        experiments = client.search_experiments(max_results=LOOKED_AT)
    except Exception as error:  # any error is a result of this check
        reason = str(error) if isinstance(error, TrackingError) else explain(error, uri)
        if is_refusal(error):
            yield CheckResult("mlflow", "problem", f"{shown} answers, but {reason}")
            return
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
                f"experiment {experiment.name!r} stores them at {experiment.artifact_location}, a path of one machine"
            )
            advice = "start the server with --artifacts-destination, and set `experiment` to a new name"
            yield CheckResult("artifacts", "problem", text, advice)
    yield from _check_runs(client, [experiment.experiment_id for experiment in experiments], gone, fix)


def check_clock(server: str, date: str | None) -> CheckResult:
    """Compares a server's clock with this machine's.

    Args:
        server: The server's name in the result.
        date: The Date header of its response, or None if it has none.
    """
    if date is None:
        return CheckResult("clock", "note", f"{server} does not report its time")
    difference = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    if abs(difference) <= CLOCK_SECONDS:
        return CheckResult("clock", "ok", f"{server} has the time of this machine")
    which = "ahead of" if difference > 0 else "behind"
    return CheckResult(
        "clock",
        "problem",
        f"{server} is {abs(difference):.0f} s {which} this machine",
        "synchronize both clocks with NTP; schedules and heartbeats depend on them",
    )


def _check_server(uri: str) -> Iterator[CheckResult]:
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import MlflowHostCreds, http_request

    creds: Any = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
    nobody = MlflowHostCreds(strip_credentials(uri), server_cert_path=creds.server_cert_path)  # type: ignore[no-untyped-call]
    try:
        answer: Any = http_request(creds, "/version", "GET")  # type: ignore[no-untyped-call]
        answer.raise_for_status()
        unlocked: Any = http_request(nobody, "/version", "GET")  # type: ignore[no-untyped-call]
    except Exception as error:
        yield CheckResult("mlflow", "note", f"its version could not be read: {explain(error, uri)}")
        return
    ours, theirs = mlflow.__version__, answer.text.strip()
    if ours.split(".")[:2] == theirs.split(".")[:2]:
        yield CheckResult("mlflow", "ok", f"server {theirs}, client {ours}")
    else:
        advice = "install the same version in both places (constraints.txt)"
        yield CheckResult("mlflow", "problem", f"server {theirs}, client {ours}", advice)
    yield check_clock("the MLflow server", answer.headers.get("Date"))
    if unlocked.status_code == 200:
        text = "it has no password, so everyone who can reach it can change runs and replace champions"
        yield CheckResult("mlflow", "note", text, "start it with --app-name basic-auth (docs/how-to/mlflow-server.md)")


def _check_artifacts(client: MlflowClient, uri: str) -> CheckResult:
    try:
        same = _is_returned_unchanged(client, uri)
    except Exception as error:
        text = f"a file can't be sent and fetched again: {explain(error, uri)}"
        return CheckResult(
            "artifacts", "problem", text, "check the server's log and whether its artifact store is writable"
        )
    if not same:
        return CheckResult("artifacts", "problem", "a file came back changed", "check the server's artifact store")
    return CheckResult("artifacts", "ok", "a file was sent and came back")


def _is_returned_unchanged(client: MlflowClient, uri: str) -> bool:
    """Uploads a file, the same on each call, and downloads it again; returns whether it came back unchanged."""
    word, name = uuid.uuid4().hex, "round-trip.txt"
    experiment = get_or_create_experiment(client, uri, EXPERIMENT, "Probes of `rl-training doctor`.")
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
    """Yields the runs that are RUNNING in MLflow although their training is known to have ended."""
    found = client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=LOOKED_AT)
    running = [run for run in found if RUN_UID in run.data.tags]
    dead = [(run, why) for run in running if (why := _explain_death(run, gone)) is not None]
    for run, why in dead:
        run_id = run.info.run_id
        text = f"{run_id} is RUNNING in MLflow, and {why}"
        if not fix:
            yield CheckResult("runs", "problem", text, "`rl-training doctor --fix` records its end there")
            continue
        if not end_if_orphaned(client, run):
            client.set_terminated(run_id, "KILLED")
        status = client.get_run(run_id).info.status
        resume = f"`rl-training resume {run_id}` continues it"
        sync = f"`rl-training sync {shlex.quote(run.data.tags.get('run_dir', ''))}` sends what is not there yet"
        yield CheckResult("runs", "fixed", f"{text}: set to {status}", resume if status == "KILLED" else sync)
    if not dead:
        yield CheckResult("runs", "ok", f"{len(running)} RUNNING in MLflow, none of them known to be dead")


def _explain_death(run: Run, gone: Callable[[str], bool]) -> str | None:
    tags = run.data.tags
    if tags.get("host") == socket.gethostname():
        if is_orphaned(run):
            return "its training process no longer exists"
        run_dir = Path(tags.get("run_dir", ""))
        return None if run_dir.exists() else f"its directory {run_dir} no longer exists"
    flow_run = tags.get(FLOW_RUN)
    return f"its flow run {flow_run} has ended" if flow_run is not None and gone(flow_run) else None
