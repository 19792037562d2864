"""Serves MLflow's pages in this process, at a secret address, for a store that no server shows."""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import uvicorn

from rl_training import run_layout
from rl_training.errors import UserError
from rl_training.serving.loopback import Announce, listen_on_loopback
from rl_training.serving.owner_only_pages import SameOriginGuard, SecretAddress
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import RunSource, find_version, parse_source, resolve_source
from rl_training.tracking.mlflow_links import get_ui_url, make_run_fragment, make_version_fragment
from rl_training.tracking.mlflow_store import (
    connect,
    get_artifact_root,
    get_sqlite_path,
    resolve_tracking_uri,
    translate_mlflow_errors,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def show_mlflow(source: str | None, port: int, announce: Announce) -> None:
    """Announces the link to a page of MLflow, and serves the pages until SIGINT or SIGTERM if no server does.

    Args:
        source: The run or version to show, as for `find_page`; None for all experiments.
        port: Port on 127.0.0.1, or 0 for a free port.
        announce: Called when the link can be opened.

    Raises:
        UserError: MLflow has no such run or version, or the port can't be used.
        TrackingError: The store can't be used.
        KeyboardInterrupt: A signal ended the server.
    """
    uri = resolve_tracking_uri()
    page = find_page(source, uri)
    if (address := get_ui_url(uri)) is not None:
        announce(f"{address}/{page}", private=False)
        return
    connect(uri)
    os.umask(0o077)
    with listen_on_loopback(port) as listener:
        at, secret = listener.getsockname()[1], secrets.token_urlsafe(32)
        app = SameOriginGuard(SecretAddress(_make_mlflow_app(uri, at), secret), at)
        config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
        link = f"http://127.0.0.1:{at}/{secret}/{page}"
        server = _AnnouncedServer(config, lambda: announce(link, private=True))
        server.run(sockets=[listener])
        if server.failure is not None:
            raise server.failure


def find_page(source: str | None, uri: str) -> str:
    """Returns the part of a page's address that follows the address of MLflow.

    Args:
        source: A run's directory, an MLflow run id, `runs:/ID`, `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None
            for the list of experiments.
        uri: The tracking URI.

    Raises:
        UserError: MLflow has no such run or version, or the directory does not belong to a run in MLflow.
        TrackingError: MLflow can't be reached.
    """
    if source is None:
        return ""
    parsed = parse_source(_read_run_id(Path(source)) if Path(source).is_dir() else source)
    with translate_mlflow_errors(uri, source):
        client = connect(uri)
        found = resolve_source(client, parsed)
        if isinstance(found, Path):
            raise UserError(f"{source}: the run in {found} is not in MLflow; send it with rl-training sync {found}")
        if isinstance(found, RunSource):
            return make_run_fragment(client.get_run(found.run_id).info.experiment_id, found.run_id)
        return make_version_fragment(found.name, find_version(client, found).version)


def _read_run_id(run_dir: Path) -> str:
    try:
        known = json_files.read_json(run_dir / run_layout.MLFLOW)
        return str((known or {})["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{run_dir} is not the directory of a run that is in MLflow (its {run_layout.MLFLOW} names none)"
        ) from None


class _AnnouncedServer(uvicorn.Server):
    """A server that calls back when it accepts requests."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._when_started = started
        self.failure: Exception | None = None
        """The exception that the callback raised; it ended the server."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Starts the server, then calls back."""
        await super().startup(sockets)
        if self.started:
            try:
                self._when_started()
            except Exception as error:
                self.failure, self.should_exit = error, True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stops the server without logging the requests that are cut off."""
        logging.getLogger("uvicorn.error").disabled = True
        await super().shutdown(sockets)


def _make_mlflow_app(uri: str, port: int) -> ASGIApp:
    """Returns the application that `mlflow server` runs, set up to run in this process and to start no others."""
    database = get_sqlite_path(uri)
    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # These override what a user has set for a server that is open to others.
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{port},localhost:{port}",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }
    if database is not None:
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(get_artifact_root(database))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about MLflow's own code
        from mlflow.server.fastapi_app import app

    mlflow_app: ASGIApp = app
    return mlflow_app
