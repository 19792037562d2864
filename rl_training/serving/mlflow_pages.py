"""MLflow's pages on a store that no server shows: in this process, at an address that its owner alone knows."""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from collections.abc import Callable
from socket import socket
from typing import TYPE_CHECKING

import uvicorn

from rl_training.serving.loopback import Announce, listen_on_loopback
from rl_training.serving.owner_only_pages import SameOriginGuard, SecretAddress
from rl_training.tracking.mlflow_store import (
    connect,
    get_artifact_root,
    get_sqlite_path,
    get_ui_url,
    resolve_tracking_uri,
)
from rl_training.tracking.page_links import find_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def show_mlflow(source: str | None, port: int, announce: Announce) -> None:
    """Announces the link to a page of MLflow's, and serves it where no server does until SIGINT or SIGTERM.

    Args:
        source: What is shown, see `find_page`; None for all experiments.
        port: Of 127.0.0.1, or 0 for a free one.
        announce: Called once the link can be opened.

    Raises:
        UserError: MLflow knows no such thing, or the port can't be used.
        TrackingError: The store can't be used.
        KeyboardInterrupt: A signal has ended the server.
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
        app = SameOriginGuard(SecretAddress(_mlflow(uri, at), secret), at)
        config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
        link = f"http://127.0.0.1:{at}/{secret}/{page}"
        server = _AnnouncedServer(config, lambda: announce(link, private=True))
        server.run(sockets=[listener])
        if server.failure is not None:
            raise server.failure


class _AnnouncedServer(uvicorn.Server):
    """Calls back when it can be talked to."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._when_started = started
        self.failure: Exception | None = None
        """What the callback raised, which ended the server."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Starts to serve."""
        await super().startup(sockets)
        if self.started:
            try:
                self._when_started()
            except Exception as error:
                self.failure, self.should_exit = error, True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Ends the requests under way, without a word on those that are cut off."""
        logging.getLogger("uvicorn.error").disabled = True
        await super().shutdown(sockets)


def _mlflow(uri: str, port: int) -> ASGIApp:
    """Returns MLflow's server as `mlflow server` makes it, in this process and without programs of its own."""
    database = get_sqlite_path(uri)
    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # What a user has set is for a server that others reach.
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{port},localhost:{port}",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }
    if database is not None:
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(get_artifact_root(database))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how MLflow itself is written
        from mlflow.server.fastapi_app import app

    mlflow_app: ASGIApp = app
    return mlflow_app
