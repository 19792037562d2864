"""The child process of `embedded_server`: a Prefect server on an inherited socket that never outlives its parent.

The process runs in its own session, so that Ctrl-C in the terminal reaches the flow and not the server that it uses.
The parent holds the other end of this process's stdin. When the parent ends, even by SIGKILL, stdin closes and the
server ends. The server keeps its files in the working directory. The database is named without a folder, because the
name of a folder may contain characters that a database URL can't.
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
from rl_training.system.import_pause import pause_garbage_collection

DATABASE = Path("prefect.db")
SHUTDOWN_SECONDS = 4.0
"""Time for the server to write the last events after its stdin has closed."""


class WatchedServer(uvicorn.Server):
    """Prints "ready" and releases the start lock once it answers requests."""

    def __init__(self, config: uvicorn.Config, start_lock: FileLock) -> None:
        super().__init__(config)
        self._start_lock = start_lock

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Starts serving; any migrations of an older database are done when this returns."""
        await super().startup(sockets)
        self._start_lock.release()
        if self.started and not self.should_exit:
            print("ready", flush=True)


def end_with_parent(server: list[WatchedServer]) -> None:
    """Waits until stdin closes, then shuts the server down if it has started, and kills this session."""
    while os.read(0, 64):
        pass
    if server and server[0].started:
        server[0].should_exit = True
        threading.Event().wait(SHUTDOWN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def create_database() -> None:
    """Creates the database under a temporary name and renames it, so that an interrupted start leaves none behind."""
    unfinished = DATABASE.with_suffix(".new")
    for leftover in Path().glob(f"{unfinished}*"):
        leftover.unlink()
    subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={**os.environ, "PREFECT_SERVER_DATABASE_CONNECTION_URL": make_database_url(unfinished)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=True,
    )
    unfinished.replace(DATABASE)


def make_database_url(database: Path) -> str:
    """Returns the URL of a database in the working directory."""
    return f"sqlite+aiosqlite:///{database}"


def build_application(port: int) -> SameOriginGuard:
    """Returns Prefect's server, behind a log-in page and a check that refuses requests from other sites."""
    with pause_garbage_collection():
        from prefect.server.api.server import create_app

        return SameOriginGuard(LogInPage(create_app()), port)


def main() -> None:
    """Creates the database if there is none, and serves on the inherited socket until the parent ends."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    os.umask(0o077)
    listener = socket(fileno=int(sys.argv[1]))
    servers: list[WatchedServer] = []
    threading.Thread(target=end_with_parent, args=(servers,), daemon=True).start()

    # Simultaneous first starts wait for each other, because two migrations of the same database would break it.
    start_lock = FileLock(DATABASE.with_suffix(".lock"))
    start_lock.acquire()
    if not DATABASE.exists():
        create_database()
    os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = make_database_url(DATABASE)
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        lambda: build_application(port),
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    servers.append(WatchedServer(config, start_lock))
    servers[0].run(sockets=[listener])


if __name__ == "__main__":
    main()
