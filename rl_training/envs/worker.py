"""A process that runs one environment for a parent at the other end of a socket, and ends when the parent is gone.

Started by `worker_vector`. It does not run the parent's main module again, as multiprocessing would, so a training
script needs no guard. Requests are `(command, payload)`, replies `("ok", value)` or `(error kind, text)`, with the
traceback beside the text (or None) where the environment raised.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from rl_training.errors import FOREIGN_ERRORS, EnvironmentFault, UserError, error_line, foreign_cause

CLOSE_SECONDS = 5.0
"""How long an environment may take to close, or to finish its step, once the parent has hung up."""


def main(descriptor: int) -> None:
    """Serves one environment until the other end of the socket `descriptor` is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A cancel signals the whole group; the parent closes its workers. A handler and not SIG_IGN, which programs
        # that the environment starts would inherit, so that the environment could not end them.
        signal.signal(number, _ignore)
    connection = Connection(descriptor)
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        _serve(connection)


def _serve(connection: Connection) -> None:
    from rl_training.config.secrets import hand_down
    from rl_training.config.settings import TrainConfig
    from rl_training.envs.factory import make_env

    fields, index, secrets = connection.recv()
    for kind, found in secrets.items():
        hand_down(kind, found.__getitem__)
    try:
        env = make_env(TrainConfig(**fields), index)
    except UserError as error:
        connection.send(("refused", str(error)))
        return
    try:
        connection.send(("ok", (env.observation_space, env.action_space)))
        while True:
            command, payload = connection.recv()
            _reply(connection, _answer(env, command, payload))
    finally:
        env.close()


def _answer(env: Any, command: str, payload: Any) -> tuple[str, Any]:
    try:
        if command == "step":
            return "ok", env.step(payload)
        if command == "reset":
            return "ok", env.reset(seed=payload[0], options=payload[1])
        name, args, kwargs = payload
        if command == "set":
            env.set_wrapper_attr(name, *args)
            return "ok", None
        attribute = env.get_wrapper_attr(name)
        return "ok", attribute(*args, **kwargs) if callable(attribute) else attribute
    except EnvironmentFault as error:
        return "fault", (str(error), _frames(foreign_cause(error)))
    except FOREIGN_ERRORS as error:
        return "failed", (error_line(error), _frames(error))


def _reply(connection: Connection, reply: tuple[str, Any]) -> None:
    kind, value = reply
    if kind == "ok" and isinstance(value, tuple) and value and isinstance(value[-1], dict):
        value = (*value[:-1], {})  # infos, which nobody reads there and not all of which can be sent
    try:
        connection.send((kind, value))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        connection.send(("failed", (f"the answer can't be sent between processes: {error}", None)))


def _frames(error: BaseException | None) -> str | None:
    from rl_training.envs.guard import RaisedByEnvironment

    if isinstance(error, RaisedByEnvironment):
        return str(error).lstrip()
    return "".join(traceback.format_exception(error)) if error is not None else None


def _end_with_parent(descriptor: int) -> None:
    """Waits until the parent's end of the socket is closed, by whatever ended the parent, and ends this process."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    time.sleep(CLOSE_SECONDS)
    os._exit(1)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Does nothing."""
