"""The child process of `flows.server`: one Prefect server on a socket handed to it, which never outlives its parent.

It runs in a session of its own, so that Ctrl-C in the terminal reaches the flow and not the server under it. The parent
holds the other end of this process's stdin: when that closes, whatever ended the parent (SIGKILL too), the server ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from socket import socket

import uvicorn
from filelock import FileLock

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
    if server:
        server[0].should_exit = True
        threading.Event().wait(SHUTDOWN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def create_database(database: Path) -> None:
    """Makes the database beside its place and moves it there whole, so that a start cut short leaves none half made."""
    unfinished = database.with_suffix(".new")
    for leftover in unfinished.parent.glob(unfinished.name + "*"):
        leftover.unlink()
    url = f"sqlite+aiosqlite:///{unfinished}"
    subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={**os.environ, "PREFECT_SERVER_DATABASE_CONNECTION_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=True,
    )
    unfinished.replace(database)


def main() -> None:
    """Makes the database where there is none, and serves until the parent is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("--database", type=Path, required=True)
    arguments = parser.parse_args()
    servers: list[WatchedServer] = []
    threading.Thread(target=end_with_parent, args=(servers,), daemon=True).start()

    # Simultaneous first starts take turns: two migrations of one database break it.
    start_lock = FileLock(arguments.database.with_suffix(".lock"))
    start_lock.acquire()
    if not arguments.database.exists():
        create_database(arguments.database)
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    servers.append(WatchedServer(config, start_lock))
    servers[0].run(sockets=[socket(fileno=arguments.socket)])


if __name__ == "__main__":
    main()
