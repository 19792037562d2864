"""Where MLflow's data is, and a client for it.

By default an SQLite file under the home of rl_training, the same from every folder. MLflow is imported inside of
functions, since that takes seconds.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from filelock import FileLock

from rl_training.errors import TrackingError
from rl_training.security import owner_only_files
from rl_training.security.secrets import redact_text
from rl_training.system.durable_files import make_directory, move_into_place, sync_file
from rl_training.system.paths import (
    HOME_VARIABLE,
    SQLITE,
    URI_VARIABLE,
    embedded_artifact_root,
    embedded_tracking_uri,
    home,
)
from rl_training.system.programs import program

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

UI_VARIABLE = "RL_TRAINING_MLFLOW_UI"
"""Where people open MLflow's pages, where that is another address than the one that programs use."""

_GAVE_UP = re.compile(r"Max retries exceeded with url: .*\(Caused by \w+\((.*)\)\)")
_WHERE = re.compile(r"^HTTPS?Connection(Pool)?\(.*?\): (Failed to establish a new connection: )?(\[Errno -?\d+\] )?")
"""What urllib3 and the system say of a server that is away: the cause, and what stands before it."""

_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"

_DEFAULTS = {
    _RETRIES: "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
}
"""What a user may set otherwise. MLflow's own defaults can hold one call for many minutes."""

_FORCED = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""What nobody may set otherwise: nothing is reported to anybody, nothing is unpickled, and standard output is ours."""


def resolve_tracking_uri(uri: str | None = None) -> str:
    """Returns the MLflow tracking URI to use: the one given, else `$MLFLOW_TRACKING_URI`, else the embedded SQLite.

    Raises:
        TrackingError: The URI is a directory, which MLflow no longer takes, or a file whose path it misreads.
    """
    uri = uri or os.environ.get(URI_VARIABLE) or embedded_tracking_uri()
    if uri.startswith(SQLITE):
        path = str(Path(uri.removeprefix(SQLITE)).absolute())
        if "?" in path or unquote(path) != path:
            # Quoting would be no help: MLflow makes the quoted path's folders before SQLAlchemy opens the right file.
            raise TrackingError(
                f"the MLflow store can't be {path}: MLflow misreads `?`, and `%` before two hexadecimal digits, in a "
                f"path; set {HOME_VARIABLE} to a folder without them, or {URI_VARIABLE} to a server or another file"
            )
        return SQLITE + path
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        raise TrackingError(
            f"MLflow tracking URI {uri!r} is a directory, which MLflow no longer writes to; "
            f"use an http(s) address, or sqlite:////absolute/path/mlflow.db"
        )
    return uri


def strip_credentials(uri: str) -> str:
    """Returns the URI without user name and password, fit to be shown and stored."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def explain(error: Exception, uri: str) -> str:
    """Returns an error of MLflow's as one line of at most 300 characters, without the store's credentials."""
    from mlflow.exceptions import MlflowException

    name = "" if isinstance(error, MlflowException) else f"{type(error).__name__}: "
    text = " ".join(f"{name}{error}".split())
    if cause := _GAVE_UP.search(text):
        text = _WHERE.sub("", cause[1].strip("\"'"))
        text = text[:1].lower() + text[1:]
    credentials, at, _ = urlsplit(uri).netloc.rpartition("@")
    return redact_text(text.replace(credentials + at, "") if at else text)[:300]


def is_server(uri: str) -> bool:
    """Whether the URI is an MLflow server's address (and not a database that is opened directly)."""
    return urlsplit(uri).scheme in ("http", "https")


def get_sqlite_path(uri: str) -> Path | None:
    """Returns the file of an SQLite store, or None for another store."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def get_ui_url(uri: str) -> str | None:
    """Returns where people open MLflow's pages, without credentials; None where no server is known that shows them."""
    address = os.environ.get(UI_VARIABLE) or (uri if is_server(uri) else "")
    return strip_credentials(address).rstrip("/") or None


def run_fragment(experiment_id: str, run_id: str) -> str:
    """Returns what follows MLflow's own address in that of a run's page."""
    # MLflow's pages are those for language models unless an address, or a click, asks for those for training.
    return f"#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def version_fragment(model: str, version: str) -> str:
    """Returns what follows MLflow's own address in that of a registered version's page."""
    return f"#/models/{quote(model, safe='')}/versions/{version}"


def get_version_url(uri: str, model: str, version: str) -> str | None:
    """Returns the address of a registered version's page; None where no server is known that shows it."""
    address = get_ui_url(uri)
    return None if address is None else f"{address}/{version_fragment(model, version)}"


def get_ui_hint(uri: str, experiment_id: str, run_id: str) -> str:
    """Returns where a run can be seen: the page's address, or the command that opens it."""
    if (address := get_ui_url(uri)) is not None:
        return f"{address}/{run_fragment(experiment_id, run_id)}"
    return f"{_store_setting(uri)}{program('rl-training')} ui {run_id}"


def _store_setting(uri: str) -> str:
    """Returns what has a command find the store from another shell too; a password is never a part of it."""
    if uri == embedded_tracking_uri():
        return f"{HOME_VARIABLE}={shlex.quote(str(home()))} " if os.environ.get(HOME_VARIABLE) else ""
    return f"{URI_VARIABLE}={shlex.quote(uri)} " if strip_credentials(uri) == uri else ""


def load_mlflow() -> None:
    """Imports MLflow's client, with the settings that are needed here; `connect` does it too. It takes seconds."""
    os.environ.update({name: value for name, value in _DEFAULTS.items() if name not in os.environ})
    os.environ.update(_FORCED)
    importlib.import_module("mlflow.tracking")


def connect(uri: str) -> MlflowClient:
    """Returns a client of the store, which is made first where it is an SQLite file that is not there yet.

    Raises:
        TrackingError: The SQLite file can't be made or used.
    """
    load_mlflow()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    path = get_sqlite_path(uri)
    if path is not None:
        try:
            _create_sqlite(path)
        except OSError as error:
            raise TrackingError(
                f"can't make the MLflow store {path}: {error}; set {URI_VARIABLE} to another"
            ) from error
    try:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except MlflowException as error:
        raise TrackingError(f"can't use the MLflow store {strip_credentials(uri)}: {explain(error, uri)}") from None


def _create_sqlite(path: Path) -> None:
    """Makes and migrates an SQLite store once, whole, however many processes ask at the same time.

    MLflow's own creation collides between processes and leaves a file that stays unusable, so it happens under a lock,
    in a file beside the target that is then renamed.
    """
    make_directory(path.parent)
    with FileLock(f"{path}.lock"):
        if path.exists():
            if SQLITE + str(path) == embedded_tracking_uri():  # one that the user has named may be shared on purpose
                owner_only_files.tighten(path)
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        beside = path.with_name(f".{path.name}.new")
        beside.unlink(missing_ok=True)
        owner_only_files.make_file(beside)  # SQLite gives a journal the permissions of its database
        store = SqlAlchemyStore(SQLITE + str(beside), str(get_artifact_root(path)))  # type: ignore[no-untyped-call]
        store.engine.dispose()
        sync_file(beside)
        move_into_place(beside, path)


def get_artifact_root(database: Path) -> Path:
    """Returns the absolute directory of the artifacts that belong to an SQLite store."""
    if SQLITE + str(database) == embedded_tracking_uri():
        return embedded_artifact_root()
    return database.parent / "mlartifacts"


def get_or_create_experiment(client: MlflowClient, uri: str, name: str) -> str:
    """Returns the id of the experiment of this name; safe where several processes ask at once.

    Raises:
        TrackingError: The experiment was deleted.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        database = get_sqlite_path(uri)
        location = (get_artifact_root(database) / "experiments").as_uri() if database is not None else None
        try:
            with no_resend():
                return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"the MLflow experiment {name!r} was deleted; restore it, or set `experiment` to another name"
        )
    return str(experiment.experiment_id)


@contextmanager
def no_resend() -> Iterator[None]:
    """Lets requests in the block go out once: sending again what creates something may create it twice."""
    before = os.environ.get(_RETRIES)
    os.environ[_RETRIES] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_RETRIES]
        else:
            os.environ[_RETRIES] = before
