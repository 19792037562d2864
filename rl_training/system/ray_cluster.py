"""Connects this process to a Ray cluster: the one that RAY_ADDRESS names, or one of this machine that is started here.

All users within a process share the connection; the last one to leave ends it, and the cluster that was started for it.
A connection that the program itself has made with `ray.init` is used as it is, and stays.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rl_training.errors import UserError, error_line
from rl_training.security.import_guard import make_command
from rl_training.system.environment_variables import set_environment
from rl_training.system.ray_head import keep_to_loopback

INSTALL = "pip install 'rl-training[ray]'"
logger = logging.getLogger(__name__)

END_SECONDS = 10.0
"""Time that a cluster of this machine has to end before its processes are killed."""

STARTS = 5
"""Starts of a cluster of this machine whose node joins too late: Ray gives it 30 seconds, too little for busy cores."""

_HEAD = "from rl_training.system.ray_head import main\nmain()"

_OURS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""The variables that Ray reads for the clusters that this process starts. They have a password, because other users of
the machine can reach loopback."""


class _Connection:
    """The connection of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.ours = False
        """Whether `ray.init` was called here, and not by the program."""
        self.head: subprocess.Popen[str] | None = None
        """The cluster of this machine, if it was started here."""


_connection = _Connection()


def connect_to_ray(who: str, cpus: int, address: str | None = None) -> Any:
    """Connects this process to Ray, unless it is connected, and returns the module `ray`.

    Args:
        who: The setting that needs Ray, for messages.
        cpus: The number of CPUs of a cluster that is started here.
        address: The address of the cluster; by default that of RAY_ADDRESS, or else one is started here.

    Raises:
        UserError: Ray is not installed, or the cluster can't be used.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray = import_module("ray")
    except ImportError:
        raise UserError(f"{who} needs Ray; run: {INSTALL}") from None
    with _connection.lock:
        if _connection.users == 0:
            _connection.ours = not ray.is_initialized()
            if _connection.ours:
                _connect(ray, who, cpus, address or os.environ.get("RAY_ADDRESS", "").strip())
                _let_ray_print(False)
        _connection.users += 1
    return ray


def leave_ray(ray: Any) -> None:
    """Ends one use of the connection."""
    with _connection.lock:
        _connection.users -= 1
        if _connection.users == 0 and _connection.ours:
            with _keep_handlers():
                ray.shutdown()
            _let_ray_print(True)
            _end_head()


def _connect(ray: Any, who: str, cpus: int, address: str) -> None:
    options: dict[str, Any] = {"address": address or None, "log_to_driver": False, "configure_logging": False}
    try:
        if address:
            with _keep_handlers():
                keep_to_loopback(False)
                keep_to_loopback(_is_on_loopback_alone(address))
                ray.init(**options)
            return
        with _keep_handlers(), set_environment(_OURS):
            options |= {"address": _start_head(cpus), "_node_ip_address": "127.0.0.1"}
            keep_to_loopback()
            import_module("ray._raylet").Config.initialize("")  # Ray has read the variables when it was imported
            ray.init(**options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        _end_head()
        where = f"the cluster {address}" if address else "a cluster of this machine"
        raise UserError(f"{who}: Ray can't use {where}: {error_line(error)}") from None
    except BaseException:
        _end_head()
        raise


def _is_on_loopback_alone(address: str) -> bool:
    """Returns whether a cluster at a loopback address can't be reached at this machine's other address.

    Ray replaces the one by the other, unless it keeps to loopback.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not port.isdecimal():
        return False
    try:
        socket.create_connection((import_module("ray.util").get_node_ip_address(), int(port)), 1.0).close()
    except OSError:
        return True
    return False


def _start_head(cpus: int) -> str:
    """Starts a cluster of this machine, again if its node joins too late, and returns its address."""
    for _ in range(STARTS - 1):
        try:
            return _try_to_start_head(cpus)
        except RuntimeError as error:
            if "timed out during startup" not in str(error):
                raise
            logger.info("starting Ray again, because its node joined too late")
            _end_head()
    return _try_to_start_head(cpus)


def _try_to_start_head(cpus: int) -> str:
    with tempfile.TemporaryFile("w+") as said:
        head = _connection.head = subprocess.Popen(
            make_command(_HEAD, str(cpus)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        assert head.stdout is not None
        for line in head.stdout:
            if line.startswith("address="):
                return line.strip().removeprefix("address=")
        said.seek(0)
        lines = said.read().strip().splitlines()
    raise RuntimeError(lines[-1] if lines else "it ended without a message")


def _end_head() -> None:
    head, _connection.head = _connection.head, None
    if head is None:
        return
    assert head.stdin is not None
    assert head.stdout is not None
    head.stdin.close()
    try:
        head.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        head.kill()  # Linux then kills the processes that it has started
        head.wait()
    head.stdout.close()


def _let_ray_print(allowed: bool) -> None:
    """Sets whether Ray prints to standard output, where it reports dead processes among our results."""
    setattr(import_module("ray._private.worker"), "_worker_logs_enabled", allowed)  # noqa: B010 - it has no types


@contextmanager
def _keep_handlers() -> Iterator[None]:
    """Restores the handlers of SIGTERM and SIGINT, which Ray replaces by handlers that end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
