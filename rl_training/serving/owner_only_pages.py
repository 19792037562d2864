"""ASGI middleware that protects a server on the loopback interface, so that only its owner can use it.

Web sites can reach such a server through the owner's browser: through a host name of their own that resolves to
127.0.0.1 (then `Host` is foreign), or with a request whose response they need not read (then `Origin` is foreign).
Other users of the machine can reach the server directly, so its address contains a secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
"""The host names by which the owner's browser may address the server."""

Headers = Iterable[tuple[bytes, bytes]]


class SameOriginGuard:
    """Passes on requests of programs and of the server's own pages; refuses a foreign host or origin."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = frozenset(f"{host}:{port}".encode() for host in HOSTS)
        self._origins = frozenset(b"http://" + host for host in self._hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles an HTTP request, a WebSocket or the lifespan of the server."""
        if scope["type"] == "lifespan" or self._is_ours(scope["headers"]):
            await self._app(scope, receive, send)
        else:
            await refuse(scope, send, 403)

    def _is_ours(self, headers: Headers) -> bool:
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        return len(hosts) == 1 and hosts[0] in self._hosts and self._origins.issuperset(origins)


class SecretAddress:
    """Serves an application below a secret first path segment; any other path is not found.

    The application's pages must use relative links. A cookie would not protect them, because a browser sends it to
    every port of a host, including other users' servers. A path is sent to this server alone, and programs can use it
    too.
    """

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app = app
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles an HTTP request, a WebSocket or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        _, first, *rest = scope["path"].split("/", 2)
        if not hmac.compare_digest(first.encode(), self._secret):
            await refuse(scope, send, 404)
        elif not rest:
            await answer(send, 307, [(b"location", b"/" + self._secret + b"/")])
        else:
            beyond = len(self._secret) + 1
            inner = {**scope, "path": scope["path"][beyond:], "raw_path": scope["raw_path"][beyond:]}
            await self._app(inner, receive, send)


async def refuse(scope: Scope, send: Send, status: int) -> None:
    """Answers a request with an empty response of the given status, and refuses a WebSocket with 403."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await answer(send, status, [])


async def answer(send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    """Sends a complete response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
