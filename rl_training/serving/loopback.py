"""Listens on the loopback interface and opens links in the user's browser."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from typing import Protocol

from rl_training.errors import UserError
from rl_training.security import owner_only_files
from rl_training.system import paths


class Announce(Protocol):
    """Tells the user about a link."""

    def __call__(self, link: str, *, private: bool) -> object:
        """Announces a link.

        Args:
            link: An address that can be opened now.
            private: Whether the link holds a secret and is served by this command itself.
        """


def listen_on_loopback(port: int) -> socket:
    """Returns a socket that listens on 127.0.0.1, so that no other program can take the port before the server is up.

    Args:
        port: Port number, or 0 for a free port.

    Raises:
        UserError: The port can't be used.
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


def open_in_browser(address: str) -> None:
    """Opens an address without secrets in the user's browser if there is a display."""
    # Without a display, `webbrowser` would start a browser in the terminal.
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)


@contextmanager
def show_in_browser(link: str) -> Iterator[None]:
    """Opens a link that holds a secret in the user's browser if there is a display; the link must work in the block.

    The browser is started with a private file that redirects to the link, because other users can see the command
    lines of processes.
    """
    page = paths.home() / f"open-{os.getpid()}.html"
    owner_only_files.make_file(page)
    page.write_text(_make_redirect(link), encoding="utf-8")
    try:
        open_in_browser(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)


def _make_redirect(link: str) -> str:
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">'
    )
