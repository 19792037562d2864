"""The embedded Prefect server: a child process on a free loopback port, used if the user has set up no server.

Prefect has a temporary server of its own. It gives up after 20 seconds, and the first database migration on a slow
machine takes longer. Ctrl-C ends it before the flow that uses it, and SIGKILL of its parent leaves it running. The
embedded server has none of these problems.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection, socket

import rl_training
from rl_training.errors import UserError
from rl_training.security import owner_only_files
from rl_training.services.orphaned_flow_runs import end_orphaned_flow_runs, make_owner_tag
from rl_training.services.prefect_environment import NO_ANALYTICS
from rl_training.services.user_server import require_answer
from rl_training.serving.loopback import listen_on_loopback
from rl_training.system import paths
from rl_training.system.constructor_cleanup import close_on_error, kill_on_close
from rl_training.system.environment_variables import set_environment

START_SECONDS = 300.0
"""Time limit for a start; the first start creates the database, which takes about a minute on a slow machine."""
STOP_SECONDS = 6.0
"""How long `stop` waits for the server; a little longer than the server's own time limit."""

LOG_BYTES = 1_000_000
"""A log file larger than this is deleted at the next start."""
DRAIN_SECONDS = 5.0
"""Time limit for sending Prefect's last events and log lines to the server."""

SERVER_SETTINGS = {
    **NO_ANALYTICS,
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    # The embedded server has no deployments, schedules or automations, so no service needs to poll the database.
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "1",
}


class EmbeddedServer:
    """A Prefect server that belongs to this process and ends with it, or when `stop` is called.

    Args:
        port: A port of 127.0.0.1; 0 for a free one.
    """

    @close_on_error
    def __init__(self, port: int = 0) -> None:
        self._opened = ExitStack()
        self.home = paths.prefect_root()
        self.log_file = self.home / "server.log"
        self.first_start = not (self.home / "prefect.db").exists()
        self.password = f"owner:{secrets.token_urlsafe(32)}"
        """Credentials (`user:password`) for Prefect's clients and pages; new for each start."""
        # This process binds the socket and hands it over, so that no other program can take the port in between.
        with listen_on_loopback(port) as listener:
            self.port: int = listener.getsockname()[1]
            _require_loopback(self.port)
            self._process = kill_on_close(self._opened, self._start(listener))
        if self.first_start:
            print("preparing the local databases, the first time takes about a minute", file=sys.stderr, flush=True)

    @property
    def url(self) -> str:
        """The address of the server's pages."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        """The value of `PREFECT_API_URL` for clients of this server."""
        return f"{self.url}/api"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def _start(self, listener: socket) -> subprocess.Popen[bytes]:
        child = Path(__file__).with_name("embedded_server_process.py")
        self._prepare_files()
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                # -P keeps the script's folder off the path, where its modules would hide others of the same name.
                [sys.executable, "-P", str(child), str(listener.fileno())],
                cwd=self.home,
                env=self._build_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def _build_environment(self) -> dict[str, str]:
        # The user's Prefect settings are meant for the user's own server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        environment |= SERVER_SETTINGS
        environment["PREFECT_HOME"] = str(self.home)
        environment["PREFECT_API_URL"] = self.api_url
        environment["PREFECT_SERVER_API_AUTH_STRING"] = self.password
        # The pages call the API at 127.0.0.1 even if they were opened at localhost.
        environment["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = f"{self.url},http://localhost:{self.port}"
        environment["PREFECT_UI_STATIC_DIRECTORY"] = str(self.home / "pages")
        # The child must find `rl_training` even if it is not installed. It comes last, after the user's own path.
        root = str(Path(rl_training.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
        return environment

    def _prepare_files(self) -> None:
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES:
            self.log_file.unlink()
        owner_only_files.make_file(self.log_file)
        for path in (self.log_file, self.home / "prefect.db"):
            owner_only_files.tighten(path)

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Returns when the server answers.

        Raises:
            UserError: The server ended or did not start in time; the message contains the end of its log.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while not select.select([self._process.stdout], [], [], 1.0)[0]:
            if time.monotonic() > deadline:
                raise UserError(f"the embedded Prefect server did not start within {seconds:.0f} s{self._log_tail()}")
        if self._process.stdout.readline().strip() != b"ready":
            code = self._process.wait()
            raise UserError(f"the embedded Prefect server ended at its start with code {code}{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = [line for line in self.log_file.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return "; ".join([f", see {self.log_file}", *(errors or lines)[-1:]])

    def wait(self) -> None:
        """Blocks for as long as the server runs.

        Raises:
            UserError: The server has ended; the message contains the end of its log.
        """
        raise UserError(f"the embedded Prefect server ended with code {self._process.wait()}{self._log_tail()}")

    def stop(self) -> None:
        """Shuts the server down, and kills it if it does not end in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def provide_server(while_starting: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Provides flows in the block with a Prefect server, and yields its API URL.

    If the user has set `PREFECT_API_URL` (in the environment or a Prefect profile), that server is used. Otherwise an
    embedded server runs until the block ends.

    Args:
        while_starting: Called while the server starts; a good place for slow imports.

    Raises:
        UserError: The embedded server did not start, or the user's server does not answer.
    """
    from prefect.settings import PREFECT_API_URL

    user_url = PREFECT_API_URL.value()
    if user_url is not None:
        while_starting()
        require_answer(user_url)
        yield user_url
        return

    with ExitStack() as stack:
        server = EmbeddedServer()
        stack.callback(server.stop)
        while_starting()
        server.wait_until_ready()
        stack.enter_context(use_server(server))
        yield server.api_url


@contextmanager
def use_server(server: EmbeddedServer) -> Iterator[None]:
    """Makes Prefect use `server` within the block, in child processes too, and sends the last events at its end."""
    from prefect import tags
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_HOME,
        temporary_settings,
    )

    environment = {
        "PREFECT_API_URL": server.api_url,
        "PREFECT_API_AUTH_STRING": server.password,
        "PREFECT_HOME": str(server.home),
    }
    # The user's proxy, if any, does not reach this machine's loopback address.
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    settings = {
        PREFECT_API_URL: server.api_url,
        PREFECT_API_AUTH_STRING: server.password,
        PREFECT_HOME: str(server.home),
        # The server ends with the flow: nobody would notice a heartbeat, which costs a second at the end of each flow.
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with set_environment(environment), temporary_settings(updates=settings), tags(make_owner_tag()):
        end_orphaned_flow_runs()
        try:
            yield
        finally:
            _drain()


def _drain() -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    EventsWorker.drain_all(timeout=DRAIN_SECONDS)
    APILogWorker.drain_all(timeout=DRAIN_SECONDS)


def _require_loopback(port: int) -> None:
    try:
        create_connection(("127.0.0.1", port), timeout=5.0).close()
    except OSError as error:
        raise UserError(
            f"127.0.0.1 can't be reached ({error.strerror or error}), and a flow's embedded Prefect server listens "
            f"there; bring the loopback interface up, set PREFECT_API_URL to another server, or use "
            f"`rl-training train`, which needs no server"
        ) from None
