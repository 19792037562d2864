"""The embedded Prefect server: a watched child process on a free loopback port, where no server was set up.

Prefect's own temporary server gives up after 20 seconds, which a cold machine needs for its first migration, dies with
Ctrl-C before the flow that needs it, and is orphaned by SIGKILL of its parent. This one does none of that.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection, socket
from typing import TYPE_CHECKING

import rl_training
from rl_training.errors import UserError
from rl_training.security import owner_only_files
from rl_training.security.secrets import redact_text
from rl_training.services.orphaned_flow_runs import end_abandoned_flow_runs, owner_tag
from rl_training.serving.loopback import listen_on_loopback
from rl_training.system import paths
from rl_training.system.constructors import closes_on_error, ended_by

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

START_SECONDS = 300.0
"""How long a start may take; the first one makes the database, about a minute on a slow machine."""
STOP_SECONDS = 6.0
"""How long the server gets to end; a little more than it gives itself."""

LOG_BYTES = 1_000_000
"""A log that has grown larger is begun anew."""
DRAIN_SECONDS = 5.0
"""How long Prefect's last events and log lines may take on their way to the server."""

NO_ANALYTICS = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

SERVER_SETTINGS = {
    **NO_ANALYTICS,
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    # No deployments, schedules or automations live here, so nothing polls the database for them.
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
    """A Prefect server of this process's own; it ends when `stop` is called or this process is gone.

    Args:
        port: Of 127.0.0.1, or 0 for a free one.
    """

    @closes_on_error
    def __init__(self, port: int = 0) -> None:
        self._opened = ExitStack()
        self.home = paths.prefect_root()
        self.log_file = self.home / "server.log"
        self.first_start = not (self.home / "prefect.db").exists()
        self.password = f"owner:{secrets.token_urlsafe(32)}"
        """What Prefect's clients and pages must know, as user and password; of this start alone."""
        # The socket is bound here and handed over, so that no other program can take the port in between.
        with listen_on_loopback(port) as listener:
            self.port: int = listener.getsockname()[1]
            _require_loopback(self.port)
            self._process = ended_by(self._opened, self._start(listener))
        if self.first_start:
            print("preparing the local databases, the first time takes about a minute", file=sys.stderr, flush=True)

    @property
    def url(self) -> str:
        """The address of the server, where its pages are."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        """What `PREFECT_API_URL` must be to use this server."""
        return f"{self.url}/api"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def _start(self, listener: socket) -> subprocess.Popen[bytes]:
        # The user's own Prefect settings are for the user's own server; none of them shall reach this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        environment |= SERVER_SETTINGS
        environment["PREFECT_HOME"] = str(self.home)
        environment["PREFECT_API_URL"] = self.api_url
        environment["PREFECT_SERVER_API_AUTH_STRING"] = self.password
        # The pages ask the API at 127.0.0.1, also where they were opened at localhost.
        environment["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = f"{self.url},http://localhost:{self.port}"
        environment["PREFECT_UI_STATIC_DIRECTORY"] = str(self.home / "pages")
        child = Path(__file__).with_name("embedded_server_process.py")
        # The child has `rl_training`, where that is not installed, and what hides it on the user's path stays first.
        root = str(Path(rl_training.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES:
            self.log_file.unlink()
        owner_only_files.make_file(self.log_file)
        for kept in (self.log_file, self.home / "prefect.db"):
            owner_only_files.tighten(kept)
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                # -P keeps the folder of the script off the path: its modules would hide others of the same name.
                [sys.executable, "-P", str(child), str(listener.fileno())],
                cwd=self.home,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Returns when the server answers.

        Raises:
            UserError: It ended or did not come up in time; the message has the end of its log.
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
        """Returns never, while the server serves.

        Raises:
            UserError: The server has ended; the message has the end of its log.
        """
        raise UserError(f"the embedded Prefect server ended with code {self._process.wait()}{self._log_tail()}")

    def stop(self) -> None:
        """Lets the server end in order, and ends it if it does not."""
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
def embedded_server(while_starting: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Gives flows in the block a Prefect server, and yields the URL of its API.

    Where the user has set `PREFECT_API_URL` (in the environment or a Prefect profile), that server is used and none is
    started. `while_starting` is called between start and first use, for imports that take their time too.

    Raises:
        UserError: The server did not start, or the user's own does not answer.
    """
    from prefect.settings import PREFECT_API_URL

    theirs = PREFECT_API_URL.value()
    if theirs is not None:
        while_starting()
        _require_answer(theirs)
        yield theirs
        return

    with ExitStack() as stack:
        server = EmbeddedServer()
        stack.callback(server.stop)
        while_starting()
        server.wait_until_ready()
        stack.enter_context(prefect_at(server))
        yield server.api_url


@contextmanager
def prefect_at(server: EmbeddedServer) -> Iterator[None]:
    """Points Prefect at `server`, here and in child processes, and sends what it has still to say before it leaves."""
    from prefect import tags
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_HOME,
        temporary_settings,
    )

    ours = {
        "PREFECT_API_URL": server.api_url,
        "PREFECT_API_AUTH_STRING": server.password,
        "PREFECT_HOME": str(server.home),
    }
    # A proxy of the user's is for other machines.
    for name in ("NO_PROXY", "no_proxy"):
        ours[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    # This server is gone when the flow is: a heartbeat would tell nobody, and costs a second at each flow's end.
    settings = {
        PREFECT_API_URL: server.api_url,
        PREFECT_API_AUTH_STRING: server.password,
        PREFECT_HOME: str(server.home),
    }
    updates = {**settings, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with _environment(ours), temporary_settings(updates=updates), tags(owner_tag()):
        end_abandoned_flow_runs()
        try:
            yield
        finally:
            _drain()


@contextmanager
def before_import() -> Iterator[None]:
    """Prepares for Prefect's import and use in the block: nothing is written outside of our home, or told to anybody.

    What the user has set stays. Prefect's home is the user's own where there is one: it says which server to use.
    """
    ours = {name: value for name, value in NO_ANALYTICS.items() if name not in os.environ}
    theirs = ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_PROFILES_PATH")
    if not any(os.environ.get(name) for name in theirs) and not Path("~/.prefect").expanduser().exists():
        ours["PREFECT_HOME"] = str(paths.prefect_root())
    with _environment(ours):
        yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables within the block, for child processes too."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
            f"127.0.0.1 can't be reached ({error.strerror or error}), where a flow's embedded Prefect server is; "
            f"bring the loopback interface up, set PREFECT_API_URL to another server, or use `rl-training train`, "
            f"which needs none"
        ) from None


@contextmanager
def lasting_server() -> Iterator[tuple[str, SyncPrefectClient]]:
    """Yields the URL of the user's own Prefect server, without credentials, and a client of it.

    Raises:
        UserError: None is set up, it does not answer, or it refuses what the block asks of it.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if url is None:
        raise UserError(
            "no Prefect server is set up: deployments and schedules need one that lasts; start one (`prefect server "
            "start`, with a password in PREFECT_SERVER_API_AUTH_STRING), set PREFECT_API_URL to its address, "
            "http://127.0.0.1:4200/api by default, and PREFECT_API_AUTH_STRING to the password"
        )
    shown = redact_text(url)
    try:
        _require_answer(url)
        with get_client(sync_client=True) as client:
            yield shown, client
    except HTTPError as error:
        what = redact_text(str(error)) or type(error).__name__
        raise UserError(f"the Prefect server at {shown} does not do what it is asked: {what}") from None


def _require_answer(api_url: str) -> None:
    """Asks the server for something by a route that it serves flows on; `/health` answers where they don't."""
    from httpx import HTTPError
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.count_flow_runs()
    except (HTTPError, RuntimeError) as problem:
        raise UserError(
            f"the Prefect server at {redact_text(api_url)} does not answer ({redact_text(str(problem))}); start it, or "
            f"unset PREFECT_API_URL (see `prefect config view`) to use an embedded one"
        ) from None
