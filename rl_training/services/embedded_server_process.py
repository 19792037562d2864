"""The child process of `embedded_server`: one Prefect server on a socket handed to it, which never outlives its parent.

It runs in a session of its own, so that Ctrl-C in the terminal reaches the flow and not the server under it. The parent
holds the other end of this process's stdin: when that closes, whatever ended the parent (SIGKILL too), the server ends.
The working directory is where the server keeps its files; its database is named without a folder, since some characters
that a folder may have can't be in a database's URL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from socket import socket

import uvicorn
from filelock import FileLock

from rl_training.serving.owner_only_pages import SameOriginGuard
from rl_training.serving.prefect_login import LogInPage

DATABASE = Path("prefect.db")
SHUTDOWN_SECONDS = 4.0
"""What the server gets to write the last events down, once its parent has gone or let go of it."""


class WatchedServer(uvicorn.Server):
    """Says "ready" on stdout when it can be talked to, and lets go of the start lock then."""

    def __init__(self, config: uvicorn.Config, start_lock: FileLock) -> None:
        super().__init__(config)
        self._start_lock = start_lock

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Starts to serve; migrations of an older database have run when this returns."""
        await super().startup(sockets)
        self._start_lock.release()
        if self.started and not self.should_exit:
            print("ready", flush=True)


def end_with_parent(server: list[WatchedServer]) -> None:
    """Blocks until the parent's end of stdin closes, then ends this session: in order if it serves, at once if not."""
    while os.read(0, 64):
        pass
    if server and server[0].started:
        server[0].should_exit = True
        threading.Event().wait(SHUTDOWN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def create_database() -> None:
    """Makes the database beside its place and moves it there whole, so that a start cut short leaves none half made."""
    unfinished = DATABASE.with_suffix(".new")
    for leftover in Path().glob(f"{unfinished}*"):
        leftover.unlink()
    subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={**os.environ, "PREFECT_SERVER_DATABASE_CONNECTION_URL": database_url(unfinished)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=True,
    )
    unfinished.replace(DATABASE)


def database_url(database: Path) -> str:
    """Returns the URL by which Prefect opens a database of the working directory."""
    return f"sqlite+aiosqlite:///{database}"


def application(port: int) -> SameOriginGuard:
    """Returns Prefect's server, which asks its callers for a password, behind what other sites do not pass."""
    from prefect.server.api.server import create_app

    return SameOriginGuard(LogInPage(create_app()), port)


def main() -> None:
    """Makes the database where there is none, and serves on the socket handed over until the parent is gone."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # by `nohup` it is ignored
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    os.umask(0o077)
    listener = socket(fileno=int(sys.argv[1]))
    servers: list[WatchedServer] = []
    threading.Thread(target=end_with_parent, args=(servers,), daemon=True).start()

    # Simultaneous first starts take turns: two migrations of one database break it.
    start_lock = FileLock(DATABASE.with_suffix(".lock"))
    start_lock.acquire()
    if not DATABASE.exists():
        create_database()
    os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database_url(DATABASE)
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        lambda: application(port),
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    servers.append(WatchedServer(config, start_lock))
    servers[0].run(sockets=[listener])


if __name__ == "__main__":
    main()
