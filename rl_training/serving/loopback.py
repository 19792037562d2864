"""A place for a server on the loopback interface, and its link in the owner's browser."""

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
    """Tells the user of a link."""

    def __call__(self, link: str, *, private: bool) -> object:
        """Tells of one.

        Args:
            link: An address that can be opened now.
            private: Whether it holds a secret, and a server of this command's own answers there.
        """


def listen_on_loopback(port: int) -> socket:
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


def open_in_browser(address: str) -> None:
    """Opens an address that everybody may know in the user's browser, where there is a display."""
    # Elsewhere `webbrowser` would start a browser in the terminal.
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)


@contextmanager
def show_in_browser(link: str) -> Iterator[None]:
    """Opens a link with a secret in the user's browser, where there is a display; the link must hold in the block.

    The browser is started on a private file that leads there, since other users see the command lines of programs.
    """
    page = paths.home() / f"open-{os.getpid()}.html"
    owner_only_files.make_file(page)
    page.write_text(_leading_to(link), encoding="utf-8")
    try:
        open_in_browser(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)


def _leading_to(link: str) -> str:
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">'
    )
