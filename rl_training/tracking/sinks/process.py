"""The process that passes a run's metrics on to one sink while the run trains.

It reads `metrics.jsonl`, and records in `sinks/NAME.json` how much the sink has. Because it is a separate process, a
sink can neither slow training down nor make it fail. Its standard input is a pipe from the training process, which
closes when training ends. It prints a line of JSON when the sink fails, when it works again, and at its end, and
outlives training by at most `DRAIN_SECONDS`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout

from rl_training.errors import USER_CODE_ERRORS, error_line
from rl_training.system.process_beside import Lifetime, exit_now, reply
from rl_training.tracking.sinks.follower import Follower
from rl_training.tracking.sinks.progress import locate, read_run

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 12.0
"""How long the process may outlive training; a little less than training waits for it."""

LOCK_SECONDS = 15.0
"""How long to wait for the process of an earlier training process of this run: a little more than `DRAIN_SECONDS`."""

POLL_SECONDS = 1.0
"""Interval at which the metrics file is read."""

FIRST_BACKOFF, LAST_BACKOFF = 0.5, 60.0
"""First and longest delay between two tries when a sink fails; the delay doubles in between."""

LAST_TRIES = 3
"""Number of failures in a row after the end of training with which a sink is given up."""


def follow(follower: Follower, lock_file: Path, replies: TextIO, lifetime: Lifetime) -> None:
    """Passes lines on until the sink has all after the end of training, or the run belongs to another process."""
    held, failures = lock_file.stat(), 0
    while True:
        over = lifetime.over.is_set()
        if _is_replaced(held, lock_file):  # the run was taken over and has another process for this sink
            return
        try:
            more = follower.advance()
            pause = 0.0 if more else POLL_SECONDS
            if failures:
                reply(replies, {"trouble": ""})
            failures = 0
        except USER_CODE_ERRORS as error:  # training must not notice any error; the next try begins at the last record
            logger.warning("sink %s has failed", follower.name, exc_info=True)
            more, failures = True, failures + 1
            pause = min(FIRST_BACKOFF * 2 ** (failures - 1), 1.0 if over else LAST_BACKOFF)
            trouble = error_line(error)
            follower.note_trouble(trouble)
            if failures == 1:
                reply(replies, {"trouble": trouble})
        if over and (not more or failures >= LAST_TRIES):
            follower.close()
            return
        if over:
            time.sleep(pause)
        else:
            lifetime.over.wait(pause)


def main(run_dir: Path, name: str, replies: TextIO) -> int:
    """Runs the process.

    Args:
        run_dir: The run's directory.
        name: The sink, as in the settings.
        replies: Stream that the training process reads.

    Returns:
        The exit code.
    """
    lifetime = Lifetime(lambda: None, DRAIN_SECONDS)
    path = locate(run_dir, name, ".lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        reply(replies, {"trouble": f"another process passes this run on to it (it holds {path})"})
        return 2
    with lock:
        os.nice(10)  # training has priority
        run, _ = read_run(run_dir)
        follow(Follower(run, name), path, replies, lifetime)
    return 0


def _is_replaced(held: os.stat_result, lock_file: Path) -> bool:
    try:
        return not os.path.samestat(held, lock_file.stat())
    except FileNotFoundError:
        return True


def run_process(run_dir: str, name: str) -> None:
    """Runs the process of a sink, with everything that the sink prints in the log, and ends it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        code = main(Path(run_dir), name, replies)
    except Exception as error:
        logger.exception("sink %s has failed", name)
        reply(replies, {"trouble": error_line(error)})
        code = 1
    exit_now(code)
