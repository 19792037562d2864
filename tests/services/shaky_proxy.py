"""A faulty proxy in front of a server: each mode is a way in which a tracking server can fail."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Request(NamedTuple):
    """One request, as it came."""

    mode: str
    path: str
    at: float


class ShakyProxy(ThreadingHTTPServer):
    """Forwards requests to a port of this machine, in the way that `mode` says.

    `pass`; `slow`: `delay` seconds late; `error500`; `error429`, to be asked again in a second; `drop`: closes at once;
    `hang`: says nothing until the mode changes; `lose`: every other request is done, and its answer is not passed on.
    """

    daemon_threads = True

    def __init__(self, to: int) -> None:
        super().__init__(("127.0.0.1", 0), Hop)
        self.to, self.mode, self.delay = to, "pass", 1.0
        self.requests: list[Request] = []
        self.uri = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.mode = "drop"
        self.shutdown()
        self.server_close()


class Hop(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: ShakyProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def hop(self) -> None:
        proxy, mode = self.server, self.server.mode
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.requests.append(Request(mode, self.path, time.monotonic()))
        while mode == "hang" and proxy.mode == "hang":
            threading.Event().wait(0.05)
        if mode in ("drop", "hang"):
            return self.cut()
        if mode.startswith("error"):
            return self.refuse(int(mode.removeprefix("error")))
        if mode == "slow":
            threading.Event().wait(proxy.delay)
        try:
            status, headers, data = self.forward(body)
        except OSError:
            return self.cut()
        if mode == "lose" and len(proxy.requests) % 2:
            return self.cut()
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.to, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), data

    def refuse(self, status: int) -> None:
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def cut(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = hop
