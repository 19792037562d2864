"""A job trains once at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl_training.errors import UserError
from rl_training.runtime.job_lock import job_lock, run_lock

HOLD = """
import sys, time
from rl_training.runtime.job_lock import job_lock
with job_lock("nightly"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))


def refused(job: str) -> str:
    began = time.monotonic()
    with pytest.raises(UserError) as caught, job_lock(job):
        pass
    assert time.monotonic() - began < 1.0
    return str(caught.value)


def test_a_second_run_of_the_job_fails_at_once_and_is_told_who_has_it() -> None:
    with job_lock("nightly"):
        message = refused("nightly")
    assert message.startswith(f"job 'nightly' is training already (process {os.getpid()} on ")
    with job_lock("nightly"):
        pass


def test_another_job_or_none_is_free() -> None:
    with job_lock("nightly"), job_lock("weekly"), job_lock(None), job_lock(None):
        pass


def test_names_that_look_alike_as_file_names_are_different_jobs() -> None:
    with job_lock("a/b"), job_lock("a b"), job_lock("../a"), job_lock(""), job_lock("x" * 500):
        assert "'a/b'" in refused("a/b")


def test_it_is_let_go_when_the_block_fails() -> None:
    with pytest.raises(KeyError), job_lock("nightly"):
        raise KeyError
    with job_lock("nightly"):
        pass


def test_an_error_of_the_block_that_looks_like_a_lock_of_its_own_is_passed_on() -> None:
    from filelock import Timeout

    with pytest.raises(Timeout), job_lock("nightly"):
        raise Timeout("other.lock")


def test_threads_exclude_each_other_too() -> None:
    messages: list[str] = []
    with job_lock("nightly"):
        thread = threading.Thread(target=lambda: messages.append(refused("nightly")))
        thread.start()
        thread.join()
    assert len(messages) == 1


def test_another_process_holds_it_until_it_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        assert f"process {process.pid} on " in refused("nightly")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with job_lock("nightly"):
        pass


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    with run_lock(tmp_path), pytest.raises(UserError) as caught, run_lock(tmp_path):
        pass
    assert str(caught.value).startswith(f"the run in {tmp_path} is training already (process {os.getpid()} on ")
    with run_lock(tmp_path):
        pass
