"""A worker process: it runs a group of environments for its parent, and ends when the parent is gone.

`worker_process` starts it. The worker does not run the parent's main module again, as multiprocessing would, so a
training script needs no `if __name__ == "__main__"` guard.

Bells request the operations of every step. Their arguments and results are in shared memory, and a bell confirms
completion; a message replaces it if the infos of the step are asked for. Every other request is a message `(command,
calls)`, where each call holds the index of an environment and the arguments. The worker replies to each call with
`("ok", value)` or `(error kind, (text, traceback))`; the traceback is None if no environment raised.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import closing, suppress
from functools import partial
from typing import Any

from rl_training.config.action_mask import MaskedActionsConfig
from rl_training.envs.episodes.sent_infos import copy_plain_info
from rl_training.envs.single_env import make_env
from rl_training.envs.vector.answers import Reply, answer, attempt
from rl_training.envs.vector.env_group import EnvGroup
from rl_training.envs.vector.step_rows import StepRows
from rl_training.envs.vector.worker_channel import BEGIN, CLOSE_SECONDS, DONE, LOOK, STEP, Channel
from rl_training.errors import UserError
from rl_training.security.secrets import register_secrets


def main(reading: int, writing: int, memory: int, spins: bool) -> None:
    """Serves a group of environments until the parent closes its end of the channel.

    Args:
        reading: Descriptor of the pipe that brings requests.
        writing: Descriptor of the pipe for replies.
        memory: Descriptor of the file for `StepRows`.
        spins: See `Channel`.
    """
    for descriptor in (reading, writing, memory):
        # A program that the environment starts, and that outlives this process, would otherwise keep the pipe open,
        # and the parent would wait forever.
        os.set_inheritable(descriptor, False)
    channel = Channel(reading, writing, spins=spins)
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        _serve(channel, memory)


def _serve(channel: Channel, memory: int) -> None:
    fields, indices, secrets = channel.receive()
    register_secrets(secrets)
    config = MaskedActionsConfig(**fields)
    with closing(EnvGroup(config)) as group:
        try:
            group.make(indices, partial(make_env, config))
        except UserError as error:
            channel.send([("refused", str(error))])
            return
        channel.send([("ok", pair) for pair in group.spaces])
        group.rows = StepRows(*group.spaces[0], channel.receive(), len(group.numbers.names), memory)
        own_actions = group.rows.action[indices.start : indices.stop]
        while True:
            request = channel.receive()
            if request == STEP:
                _confirm(channel, attempt(group.step, own_actions.copy()))
            elif request == LOOK:
                _send_infos(channel, group, own_actions.copy())
            elif request == BEGIN:
                _confirm(channel, attempt(group.begin_episodes))
            else:
                command, calls = request
                _reply(channel, [answer(group, command, call) for call in calls])


def _confirm(channel: Channel, reply: Reply) -> None:
    if reply[0] == "ok":
        channel.ring(DONE)
    else:
        channel.send([reply])


def _send_infos(channel: Channel, group: EnvGroup, actions: Any) -> None:
    infos: list[dict[str, Any]] = []
    reply = attempt(group.step, actions, infos)
    channel.send([("ok", copy_plain_info(info)) for info in infos] if reply[0] == "ok" else [reply])


def _reply(channel: Channel, replies: list[Reply]) -> None:
    try:
        channel.send(replies)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        channel.send([("failed", (f"the answer can't be sent between processes: {error}", None))])


def _end_with_parent(channel: Channel) -> None:
    """Ends this process `CLOSE_SECONDS` after the parent has closed its end, even if an environment still runs."""
    channel.wait_for_end()
    time.sleep(CLOSE_SECONDS)
    os._exit(1)
