"""The other ranks: processes that train by the orders of rank 0, and end when it does.

They write no files. If one fails, rank 0 reports why.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.checking import build_settings
from rl_training.config.parsing import read_yaml
from rl_training.config.settings import TrainConfig
from rl_training.distributed.group import Group, join_torchrun, open_store
from rl_training.distributed.torchrun import find_place, require_ranks
from rl_training.errors import RankFailed, RLTrainingError, error_line, one_line
from rl_training.networks.threads import THREADS
from rl_training.runs.stopping import StopFlag, stop_on_signals
from rl_training.runtime.ranks.learner import RankLearner
from rl_training.runtime.ranks.orders import Command, receive
from rl_training.security.secrets import register_secrets
from rl_training.system.process_beside import Lifetime

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long this process may take to end after rank 0 has died."""


def main(rank: int, ranks: int, path: str) -> None:
    """Follows rank 0 in a process that `Team` has started.

    Args:
        rank: Number of this rank.
        ranks: Number of ranks.
        path: The file in which the ranks meet.
    """
    register_secrets(json.loads(_read_line()))
    remove_folder = partial(shutil.rmtree, Path(path).parent, ignore_errors=True)
    lifetime = Lifetime(remove_folder, CLOSE_SECONDS)
    store = open_store(path, ranks)
    with stop_on_signals(StopFlag()) as stop:
        store.set(f"started-{rank}", "")
        code = _follow(Group(store, rank, ranks, rank, loopback=True), stop)
    if code and lifetime.over.wait(CLOSE_SECONDS):  # rank 0, which removes the folder of the file, may have been killed
        remove_folder()
    logging.shutdown()
    os._exit(code)  # a regular exit takes long on a busy machine


def leave_if_follower(config: TrainConfig | None) -> None:
    """Follows rank 0 and ends this process if `torchrun` has started it as another rank; else returns.

    Args:
        config: The settings of the run; None if only rank 0 reads them, from the checkpoint that it resumes.

    Raises:
        ConfigError: `torchrun` has started another number of processes than the settings ask for.
        SystemExit: Training has ended.
    """
    place = find_place()
    if place is None:
        return
    if config is not None:
        require_ranks(getattr(config, "ranks", 1))
    if place.rank == 0:
        return
    with stop_on_signals(StopFlag()) as stop:
        code = _follow(join_torchrun(place), stop)
    sys.exit(code)


def _follow(group: Group, stop: StopFlag) -> int:
    """Trains by the orders of rank 0 until the last one; returns the exit code."""
    with closing(group):
        try:
            text = group.send_to_all(None).decode()
            config = build_settings(read_yaml(text, "the settings of rank 0"), PPOConfig)
            with THREADS.using(config.threads), closing(RankLearner(config, group)) as learner:
                _obey(learner, group, stop)
            return 0
        except RankFailed as error:  # rank 0, or the rank that it reports
            logger.info("rank %d ends: %s", group.rank, error)
        except Exception as error:
            known = isinstance(error, RLTrainingError)
            logger.debug("rank %d has failed", group.rank, exc_info=error)
            with suppress(RuntimeError):
                group.report(one_line(error) if known else error_line(error))
    return 1


def _obey(learner: RankLearner, group: Group, stop: StopFlag) -> None:
    while True:
        command, first, second = receive(group, stop.requested)
        match command:
            case Command.START:
                learner.start()
            case Command.LOAD:
                learner.load(None, None)
            case Command.COLLECT:
                learner.collect(first, second)
            case Command.UPDATE:
                learner.update(first)
            case Command.SAVE:
                learner.save()
            case Command.END:
                return


def _read_line() -> bytes:
    """Reads the first line of standard input, and nothing beyond it, because the rest tells when rank 0 ends."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return bytes(line) or b"{}"
