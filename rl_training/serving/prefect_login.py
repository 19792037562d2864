"""A page that logs the owner in to Prefect's pages, so that a link to a flow run opens without typing a password.

Prefect's pages keep the password in the browser's local storage, which belongs to one address and port. The link
carries the password after `#`, a part that browsers send to no server.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from rl_training.serving.owner_only_pages import answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/log-in"

_PAGE = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Prefect</title>
<script>
  const asked = new URLSearchParams(location.hash.slice(1)), flowRun = asked.get("flow_run") ?? "";
  localStorage.setItem("prefect-password", asked.get("password") ?? "");
  location.replace(/^[0-9a-f-]{36}$/.test(flowRun) ? `/runs/flow-run/${flowRun}` : "/runs");
</script></html>
"""


class LogInPage:
    """Adds the log-in page to Prefect's application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles an HTTP request, a WebSocket or the lifespan of the server."""
        if scope["type"] == "http" and scope["path"] == PATH:
            await answer(send, 200, [(b"content-type", b"text/html; charset=utf-8")], _PAGE)
        else:
            await self._app(scope, receive, send)


def make_log_in_link(url: str, password: str, flow_run_id: str | None = None) -> str:
    """Returns a link that logs the owner in and opens the page of a flow run, or the list of all flow runs.

    Args:
        url: The server's address.
        password: The server's `PREFECT_SERVER_API_AUTH_STRING`.
        flow_run_id: The flow run to show.
    """
    asked = {"password": b64encode(password.encode()).decode()}
    if flow_run_id is not None:
        asked["flow_run"] = flow_run_id
    return f"{url}{PATH}#{urlencode(asked)}"
