"""Finds MLflow's store, creates it if necessary, and connects to it.

By default the store is an SQLite file in the home of rl_training, whatever the working directory. MLflow is imported
inside functions because the import takes seconds.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from filelock import FileLock

from rl_training.errors import TrackingError, UserError
from rl_training.security import owner_only_files
from rl_training.security.secrets import redact_text
from rl_training.system.durable_files import make_directory, move_into_place, sync_file
from rl_training.system.environment_variables import set_environment
from rl_training.system.paths import (
    HOME_VARIABLE,
    SQLITE,
    URI_VARIABLE,
    embedded_artifact_root,
    embedded_tracking_uri,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

USER_VARIABLE, PASSWORD_VARIABLE = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
CERTIFICATE_VARIABLE = "MLFLOW_TRACKING_SERVER_CERT_PATH"
NOTE = "mlflow.note.content"
"""MLflow's tag with the description on the page of a run or an experiment."""

UNKNOWN_CODES = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a run, model or version that does not exist, and for an alias that does not exist."""

PAGE_SIZE = 500
"""The number of runs that one request asks MLflow for."""

_GAVE_UP = re.compile(r"Max retries exceeded with url: .*\(Caused by \w+\((.*)\)\)")
_WHERE = re.compile(r"^HTTPS?Connection(Pool)?\(.*?\): (Failed to establish a new connection: )?(\[Errno -?\d+\] )?")
"""Patterns in the message of urllib3 when a server can't be reached: the cause, and the text in front of it."""

_HEADING = re.compile(r"#{3,} File (.+?) #{3,}")
"""Pattern in MLflow's message about files that could not be downloaded: the heading of each file."""

_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"

_DEFAULTS = {
    _RETRIES: "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    **dict.fromkeys(("MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD", "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD"), "false"),
}
"""Settings that the user may override. With MLflow's own a call can block for many minutes, the first one on a machine
logs how it makes its tables, and clients go to the server's artifact store, which they may not be able to reach."""

_FORCED = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings that can't be overridden: no telemetry, no unpickling, and nothing but our own output on stdout."""


def resolve_tracking_uri(uri: str | None = None) -> str:
    """Returns the MLflow tracking URI: `uri` if given, else `$MLFLOW_TRACKING_URI`, else the embedded SQLite file.

    Raises:
        TrackingError: The URI is a directory, which MLflow no longer supports, or a file whose path MLflow misreads.
    """
    uri = uri or os.environ.get(URI_VARIABLE) or embedded_tracking_uri()
    if uri.startswith(SQLITE):
        path = str(Path(uri.removeprefix(SQLITE)).absolute())
        if "?" in path or unquote(path) != path:
            # Quoting does not help: MLflow creates the quoted folders, then SQLAlchemy opens the right file.
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
    """Returns the URI without user name and password, so that it can be shown and stored."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def explain(error: Exception, uri: str) -> str:
    """Returns an error from MLflow as one line of at most 300 characters, without the store's credentials."""
    from mlflow.exceptions import MlflowException

    if is_refusal(error):
        given = all(map(os.environ.get, (USER_VARIABLE, PASSWORD_VARIABLE)))
        said = "refuses the login in {}; set them to one that it knows" if given else "asks for a login; set {}"
        return f"it {said.format(f'{USER_VARIABLE} and {PASSWORD_VARIABLE}')}"
    name = "" if isinstance(error, MlflowException) else f"{type(error).__name__}: "
    text = _HEADING.sub(r"\1:", " ".join(f"{name}{error}".split()))
    if cause := _GAVE_UP.search(text):
        text = _WHERE.sub("", cause[1].strip("\"'"))
        text = text[:1].lower() + text[1:]
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"its certificate could not be verified; set {CERTIFICATE_VARIABLE} to a file with it or its authority"
    credentials, at, _ = urlsplit(uri).netloc.rpartition("@")
    return redact_text(text.replace(credentials + at, "") if at else text)[:300]


def is_refusal(error: Exception) -> bool:
    """Returns whether an error says that the server does not accept the login, or asks for one."""
    response = getattr(error, "response", None)  # an artifact's error is one of `requests`
    return getattr(error, "error_code", None) == "UNAUTHENTICATED" or getattr(response, "status_code", None) == 401


def is_server(uri: str) -> bool:
    """Returns whether the URI is the address of an MLflow server, not of a database that is opened directly."""
    return urlsplit(uri).scheme in ("http", "https")


def get_sqlite_path(uri: str) -> Path | None:
    """Returns the file of an SQLite store, or None for any other store."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def load_mlflow() -> None:
    """Imports MLflow's client with the settings above, which takes seconds; `connect` calls this too."""
    os.environ.update({name: value for name, value in _DEFAULTS.items() if name not in os.environ})
    os.environ.update(_FORCED)
    importlib.import_module("mlflow.tracking")


def connect(uri: str) -> MlflowClient:
    """Returns a client of the store; creates the store if it is an SQLite file that does not exist yet.

    Raises:
        TrackingError: The SQLite file can't be created or used.
    """
    load_mlflow()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    _use_login_for_artifacts(uri)
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


def _use_login_for_artifacts(uri: str) -> None:
    """Sets MLflow's variables to the URI's login, unless they are set: MLflow sends artifacts without it otherwise."""
    address = urlsplit(uri)
    if is_server(uri) and address.username and address.password:
        os.environ.setdefault(USER_VARIABLE, unquote(address.username))
        os.environ.setdefault(PASSWORD_VARIABLE, unquote(address.password))


def _create_sqlite(path: Path) -> None:
    """Creates and migrates an SQLite store exactly once, however many processes call this at the same time.

    When several processes let MLflow create the same file, they collide and leave a file that can't be used. Therefore
    the file is created under a lock and another name, and then renamed.
    """
    make_directory(path.parent)
    with FileLock(f"{path}.lock"):
        if path.exists():
            if SQLITE + str(path) == embedded_tracking_uri():  # a file that the user chose may be shared on purpose
                owner_only_files.tighten(path)
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        beside = path.with_name(f".{path.name}.new")
        beside.unlink(missing_ok=True)
        owner_only_files.make_file(beside)  # SQLite gives its journal the same permissions
        store = SqlAlchemyStore(SQLITE + str(beside), str(get_artifact_root(path)))  # type: ignore[no-untyped-call]
        store.engine.dispose()
        sync_file(beside)
        move_into_place(beside, path)


def get_artifact_root(database: Path) -> Path:
    """Returns the absolute directory of the artifacts of an SQLite store."""
    if SQLITE + str(database) == embedded_tracking_uri():
        return embedded_artifact_root()
    return database.parent / "mlartifacts"


def get_or_create_experiment(client: MlflowClient, uri: str, name: str, note: str) -> str:
    """Returns the id of the experiment with this name; several processes may call this at once.

    Args:
        client: MLflow's client.
        uri: The tracking URI.
        name: The name of the experiment.
        note: The description for the page of a new experiment, in Markdown.

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
                return str(client.create_experiment(name, artifact_location=location, tags={NOTE: note}))
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
    """Turns off retries in the block: a retried request to create something may create it twice."""
    with set_environment({_RETRIES: "0"}):
        yield


def iterate_runs(
    client: MlflowClient, experiments: Sequence[str], wanted: str = "", *, newest_first: bool = False
) -> Iterator[Run]:
    """Yields the runs of experiments that match a filter, by default the oldest first."""
    order = f"attributes.start_time {'DESC' if newest_first else 'ASC'}"
    token, more = None, bool(experiments)
    while more:
        page = client.search_runs(list(experiments), wanted, max_results=PAGE_SIZE, order_by=[order], page_token=token)
        yield from page
        token, more = page.token, bool(page.token)


def create_or_find(create: Callable[[], T], find: Callable[[], T | None]) -> T:
    """Returns what `create` makes in MLflow, or what `find` finds after an error, which may be a lost reply."""
    from mlflow.exceptions import MlflowException

    try:
        with no_resend():
            return create()
    except MlflowException:
        if (found := find()) is None:
            raise
        return found


@contextmanager
def translate_mlflow_errors(uri: str, what: str) -> Iterator[None]:
    """Translates MLflow's errors in the block into our own by their codes.

    Args:
        uri: The tracking URI.
        what: The run, model or action that the block is about, for the message.

    Raises:
        UserError: MLflow has no such run, model, version or alias.
        TrackingError: MLflow can't be reached, or reports another error.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        where, why = strip_credentials(uri), explain(error, uri)
        if error.error_code in UNKNOWN_CODES:
            raise UserError(f"{what}: MLflow at {where} has no such thing: {why}") from None
        raise TrackingError(f"{what}: MLflow at {where} can't be reached or is in trouble: {why}") from None
