"""A process that runs a share of a vector environment's environments for a parent, and ends when the parent is gone.

Started by `worker_process`. It does not run the parent's main module again, as multiprocessing would, so a training
script needs no guard. Bells ask for what is done at each step, with what it takes in shared memory, and a bell answers
that the results are there. All else is messages: `(command, calls)`, the calls with an environment's index and
arguments each, and for each of them a reply, `("ok", value)` or `(error kind, (text, traceback))`, the traceback None
where no environment raised.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from contextlib import closing, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from rl_training.envs.vector.worker_channel import Channel
from rl_training.errors import FOREIGN_ERRORS, EnvironmentFault, UserError, error_line, foreign_cause
from rl_training.system.signal_handlers import handled_by

if TYPE_CHECKING:
    from rl_training.envs.vector.env_group import EnvShare

STEP, BEGIN, DONE = b"s", b"b", b"d"
"""The bells: step all with `StepRows.action`; begin the next episodes of `StepRows.ended`; it is done."""

Reply = tuple[str, Any]

CLOSE_SECONDS = 5.0
"""How long an environment may take to close, or to finish its step, once the parent has hung up."""


def main(reading: int, writing: int, memory: int, spins: bool) -> None:
    """Serves a share of environments until the parent closes its end of the channel.

    Args:
        reading: Descriptor of the pipe that brings requests.
        writing: Descriptor of the pipe for replies.
        memory: Descriptor of the file for `StepRows`.
        spins: See `Channel`.
    """
    for descriptor in (reading, writing, memory):
        # Else a program that outlives this process would hold the line, and the parent would wait for ever.
        os.set_inheritable(descriptor, False)
    channel = Channel(reading, writing, spins=spins)
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    # A cancel signals the whole group; the parent closes its workers. A handler and not SIG_IGN, which programs that
    # the environment starts would inherit, so that the environment could not end them.
    with handled_by(_ignore), suppress(EOFError, ConnectionError):
        _serve(channel, memory)


def _serve(channel: Channel, memory: int) -> None:
    from rl_training.config.settings import TrainConfig
    from rl_training.envs.contract.contract_guard import secrets_of
    from rl_training.envs.factory import make_env
    from rl_training.envs.vector.env_group import EnvShare
    from rl_training.envs.vector.step_rows import StepRows
    from rl_training.security.secrets import hand_down

    fields, indices, secrets = channel.receive()
    for kind, found in secrets.items():
        hand_down(kind, found.__getitem__)
    config = TrainConfig(**fields)
    with closing(EnvShare(config.env_id, secrets_of(config))) as share:
        try:
            share.make(indices, partial(make_env, config))
        except UserError as error:
            channel.send([("refused", str(error))])
            return
        channel.send([("ok", pair) for pair in share.spaces])
        share.rows = StepRows(*share.spaces[0], channel.receive(), memory)
        own_actions = share.rows.action[indices.start : indices.stop]
        while True:
            request = channel.receive()
            if request == STEP:
                _say_done(channel, _attempt(share.step, own_actions.copy()))
            elif request == BEGIN:
                _say_done(channel, _attempt(share.begin_episodes))
            else:
                command, calls = request
                _reply(channel, [_answer(share, command, call) for call in calls])


def _say_done(channel: Channel, reply: Reply) -> None:
    if reply[0] == "ok":
        channel.ring(DONE)
    else:
        channel.send([reply])


def _answer(share: EnvShare, command: str, call: tuple[Any, ...]) -> Reply:
    kind, value = _attempt(getattr(share, command), *call)
    if isinstance(value, tuple) and value and isinstance(value[-1], dict):
        value = (*value[:-1], {})  # infos, which nobody reads there and not all of which can be sent
    return kind, value


def _attempt(function: Any, *arguments: Any) -> Reply:
    try:
        return "ok", function(*arguments)
    except EnvironmentFault as error:
        return "fault", (str(error), _frames(foreign_cause(error)))
    except FOREIGN_ERRORS as error:
        return "failed", (error_line(error), _frames(error))


def _reply(channel: Channel, replies: list[Reply]) -> None:
    try:
        channel.send(replies)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        channel.send([("failed", (f"the answer can't be sent between processes: {error}", None))])


def _frames(error: BaseException | None) -> str | None:
    from rl_training.envs.contract.contract_guard import RaisedByEnvironment

    if isinstance(error, RaisedByEnvironment):
        return str(error).lstrip()
    return "".join(traceback.format_exception(error)) if error is not None else None


def _end_with_parent(channel: Channel) -> None:
    """Ends this process where the parent has hung up and closing takes too long."""
    channel.wait_for_end()
    time.sleep(CLOSE_SECONDS)
    os._exit(1)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Does nothing."""
