"""A signal stops and saves a run even if the environment handles signals itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import LIMIT

from rl_training.runs.stopping import EXIT_STOPPED
from rl_training.system.signal_handlers import (
    check_handlers,
    handle_stop_signals,
    keep_handlers,
    restore_handlers,
)


@pytest.mark.parametrize(
    ("during", "vectorization", "number"),
    [
        pytest.param("make", "async", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("reset", "split", signal.SIGHUP, marks=pytest.mark.slow),
        ("step", "sync", signal.SIGINT),
    ],
)
def test_a_signal_stops_training_although_the_environment_takes_it(
    during: str, vectorization: str, number: signal.Signals, small_config: Path
) -> None:
    sets = ["env_id=case_envs:TakesSignals-v0", f"env_kwargs.during={during}", f"vectorization={vectorization}"]
    sets += ["total_timesteps=10_000_000", "checkpoint.every=1_000"]
    words = [word for override in sets for word in ("--set", override)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", "train", "--config", str(small_config), "--no-track", "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told, evaluations = [], 0
    for line in process.stderr:
        told.append(line)
        evaluations += "evaluation mean" in line
        if evaluations == 3:
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == EXIT_STOPPED, "".join([*told, err])
    stopped = json.loads(out)
    assert stopped["stop_reason"] == "signal"
    assert stopped["num_timesteps"] >= 384
    assert Path(stopped["checkpoint"], "manifest.json").is_file()
    warnings = [line for line in told if "takes SIGTERM, SIGINT, SIGHUP for itself" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("environment case_envs:TakesSignals-v0 ")


def test_handlers_are_put_back_within_the_block_and_left_alone_after_it() -> None:
    heard: list[int] = []
    theirs = lambda *_: None  # noqa: E731
    with handle_stop_signals(lambda number, frame: heard.append(number)):
        signal.signal(signal.SIGTERM, theirs)
        restore_handlers("a")
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        check_handlers()  # once an environment has taken signals, each look is careful
        os.kill(os.getpid(), signal.SIGHUP)
    assert heard == [signal.SIGTERM, signal.SIGHUP]
    signal.signal(signal.SIGTERM, theirs)
    restore_handlers("a")
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_handlers_that_stand_in_an_inner_block_are_the_ones_that_are_kept() -> None:
    outer, inner = (lambda *_: None), (lambda *_: None)
    with handle_stop_signals(outer):
        signal.signal(signal.SIGTERM, inner)  # as Prefect does for a flow
        with keep_handlers():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            restore_handlers("a")
            assert signal.getsignal(signal.SIGTERM) is inner
        restore_handlers("a")
        assert signal.getsignal(signal.SIGTERM) is outer


def test_another_thread_changes_no_handler() -> None:
    with handle_stop_signals(lambda *_: None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        thread = threading.Thread(target=restore_handlers, args=("a",))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_hangup_stays_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heard: list[int] = []
    with handle_stop_signals(lambda number, frame: heard.append(number)):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        restore_handlers("a")
        os.kill(os.getpid(), signal.SIGHUP)
    assert heard == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
