"""The process that trains one segment of a trial: `python -m rl_training.sweeps.trial_process`.

It reads the segment as one line of JSON from its standard input, trains it, and writes the record of the run as one
line of JSON to its standard output. It ends at once when its standard input closes, because its sweep is then gone. If
it ends without a record, the segment is tried again; its exit code is 75 if a signal has stopped it and the run was
saved.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import NoReturn, TextIO

from rl_training.errors import RLTrainingError
from rl_training.runs.stopping import EXIT_STOPPED, Terminated, interrupt_on_signals
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.segments import from_text, to_text
from rl_training.system.open_file_limit import raise_limit
from rl_training.system.process_beside import exit_now

EXIT_ERROR, EXIT_NO_SEGMENT, EXIT_ALONE = 1, 2, 3
"""Exit codes: an error that is not the trial's; the input is no segment; the process that reads the record is gone."""

CPUS_VARIABLE = "RL_TRAINING_CPUS"
"""Environment variable with the numbers of the CPUs that the process is to use, separated by commas."""


def main() -> NoReturn:
    """Trains the segment that standard input describes."""
    _pin()
    out = _keep_stdout()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("rl_training").setLevel(logging.INFO)
    try:
        with open(0, "rb", buffering=0, closefd=False) as requests:  # unbuffered, because a thread reads on
            segment = from_text(requests.readline(), Segment)
    except NotReadable as error:
        print(f"error: the segment can't be read: {error}", file=sys.stderr)
        exit_now(EXIT_NO_SEGMENT)
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    exit_now(_run(segment, out))


def _run(segment: Segment, out: TextIO) -> int:
    """Trains the segment, writes its record, and returns the exit code."""
    try:
        with interrupt_on_signals():
            raise_limit()
            from rl_training.sweeps.trial import run_segment

            record = run_segment(segment)
    except RLTrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt as interruption:
        return interruption.exit_code if isinstance(interruption, Terminated) else 130
    except Exception:
        logging.getLogger(__name__).exception("the trial has ended with an unexpected error")
        return EXIT_ERROR
    if record is None:
        return EXIT_STOPPED
    print(to_text(record), file=out, flush=True)
    return 0


def _pin() -> None:
    """Keeps this process and its children on the CPUs that it was given, where the system can do that."""
    if (chosen := os.environ.get(CPUS_VARIABLE)) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(number) for number in chosen.split(",")})


def _keep_stdout() -> TextIO:
    """Returns the real standard output; whatever else prints there goes to standard error from now on."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _end_with_sweep() -> None:
    while os.read(0, 1):
        pass
    os._exit(EXIT_ALONE)


if __name__ == "__main__":
    main()
