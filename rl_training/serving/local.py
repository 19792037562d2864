"""A place for a server on the loopback interface, and its link in the owner's browser."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

from rl_training.config import owner_only, paths
from rl_training.errors import UserError


def loopback_listener(port: int) -> socket:
    """Returns a socket that listens on 127.0.0.1, so that no other program can take the port before the server is up.

    Args:
        port: Its number, or 0 for a free one.

    Raises:
        UserError: The port can't be had.
    """
    listener = socket(AF_INET, SOCK_STREAM)
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(f"port {port} of 127.0.0.1 can't be used: {error.strerror or error}; choose another") from None
    return listener


@contextmanager
def shown_in_browser(link: str) -> Iterator[None]:
    """Opens a link with a secret in the user's browser, where there is a display.

    The browser is started on a private file that leads there, since other users see the command lines of programs.
    """
    if not (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        yield
        return
    page = paths.home() / f"open-{os.getpid()}.html"
    owner_only.make_file(page)
    page.write_text(_leading_to(link), encoding="utf-8")
    try:
        webbrowser.open(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)


def _leading_to(link: str) -> str:
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">'
    )
