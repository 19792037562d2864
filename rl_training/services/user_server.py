"""The user's own Prefect server, which `PREFECT_API_URL` names in the environment or in a Prefect profile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rl_training.errors import UserError
from rl_training.security.secrets import redact_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@contextmanager
def connect_to_user_server() -> Iterator[tuple[str, SyncPrefectClient]]:
    """Yields the server's API URL without credentials, and a client for it.

    Raises:
        UserError: No server is set up, it does not answer, or it refuses a request made in the block.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if url is None:
        raise UserError(
            "no Prefect server is set up, and deployments and schedules need one that keeps running; start one "
            "(`prefect server start`, with a password in PREFECT_SERVER_API_AUTH_STRING), then set PREFECT_API_URL to "
            "its address (by default http://127.0.0.1:4200/api) and PREFECT_API_AUTH_STRING to the password"
        )
    shown = redact_text(url)
    try:
        require_answer(url)
        with get_client(sync_client=True) as client:
            yield shown, client
    except HTTPError as error:
        reason = redact_text(str(error)) or type(error).__name__
        raise UserError(f"a request to the Prefect server at {shown} failed: {reason}") from None


def require_answer(api_url: str) -> None:
    """Sends the server a small query. `/health` would not do: it answers even if the API does not.

    Raises:
        UserError: The server does not answer, or refuses the password.
    """
    from httpx import HTTPError, HTTPStatusError
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.count_flow_runs()
    except (HTTPError, RuntimeError) as error:
        if isinstance(error, HTTPStatusError) and error.response.status_code == 401:
            raise UserError(f"the Prefect server at {redact_text(api_url)} answers, but {_explain_refusal()}") from None
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise UserError(
                f"the certificate of the Prefect server at {redact_text(api_url)} could not be verified; set "
                f"PREFECT_API_SSL_CERT_FILE to a file with it or its authority"
            ) from None
        raise UserError(
            f"the Prefect server at {redact_text(api_url)} does not answer ({redact_text(str(error))}); start it, or "
            f"unset PREFECT_API_URL (see `prefect config view`) to use an embedded server"
        ) from None


def _explain_refusal() -> str:
    from prefect.settings import PREFECT_API_AUTH_STRING

    wanted = "the login that the server was started with (its PREFECT_SERVER_API_AUTH_STRING)"
    if not PREFECT_API_AUTH_STRING.value():
        return f"it asks for a password; set PREFECT_API_AUTH_STRING to {wanted}"
    return f"it refuses the password in PREFECT_API_AUTH_STRING; set it to {wanted}"
