"""Prefect's pages on the flow runs that no lasting server has: `rl-training ui --prefect`."""

from __future__ import annotations

from uuid import UUID

from rl_training.errors import UserError
from rl_training.services.embedded_server import EmbeddedServer, before_import
from rl_training.serving.loopback import Announce
from rl_training.serving.prefect_login import make_log_in_link


def show_prefect(flow_run_id: str | None, port: int, announce: Announce) -> None:
    """Announces the link to Prefect's pages, and serves them where no server is set up until SIGINT or SIGTERM.

    Args:
        flow_run_id: The flow run that is shown; None for all.
        port: Of 127.0.0.1, or 0 for a free one.
        announce: Called once the link can be opened.

    Raises:
        UserError: It is no flow run's id, the port can't be used, or the server does not start or has ended.
        KeyboardInterrupt: A signal has ended the server.
    """
    if flow_run_id is not None:
        flow_run_id = _checked(flow_run_id)
    with before_import():
        from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

        if PREFECT_API_URL.value() is not None:
            page = f"/runs/flow-run/{flow_run_id}" if flow_run_id else "/runs"
            announce(f"{PREFECT_UI_URL.value()}{page}", private=False)
            return
    server = EmbeddedServer(port)
    try:
        server.wait_until_ready()
        announce(make_log_in_link(server.url, server.password, flow_run_id), private=True)
        server.wait()
    finally:
        server.stop()


def _checked(flow_run_id: str) -> str:
    try:
        return str(UUID(flow_run_id))
    except ValueError:
        raise UserError(f"{flow_run_id!r} is not the id of a flow run") from None
