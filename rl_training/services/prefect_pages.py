"""`rl-training ui --prefect`: Prefect's pages for flow runs in the embedded server's database."""

from __future__ import annotations

from uuid import UUID

from rl_training.errors import UserError
from rl_training.services.embedded_server import EmbeddedServer
from rl_training.services.prefect_environment import prepare_prefect
from rl_training.serving.loopback import Announce
from rl_training.serving.prefect_login import make_log_in_link


def show_prefect(flow_run_id: str | None, port: int, announce: Announce) -> None:
    """Announces the link to Prefect's pages; if no server is set up, serves them until SIGINT or SIGTERM.

    Args:
        flow_run_id: The flow run to show; None for the list of all flow runs.
        port: A port of 127.0.0.1; 0 for a free one.
        announce: Called once the link can be opened.

    Raises:
        UserError: `flow_run_id` is not a UUID, the port can't be used, or the server did not start or has ended.
        KeyboardInterrupt: A signal has ended the server.
    """
    if flow_run_id is not None:
        flow_run_id = _parse_id(flow_run_id)
    with prepare_prefect():
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


def _parse_id(flow_run_id: str) -> str:
    try:
        return str(UUID(flow_run_id))
    except ValueError:
        raise UserError(f"{flow_run_id!r} is not the id of a flow run") from None
