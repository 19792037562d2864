"""A job is trained by one process at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import LIMIT

from rl_training.config.serialization import WrittenConfig
from rl_training.errors import CheckpointNotWritten, RunTakenOver, UserError
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.locks import RunLock, job_lock, record_takeover, require_not_taken_over, take_over
from rl_training.runtime.checkpoint import newest_good, staging, write_checkpoint

HOLD = """
import sys, time
from rl_training.runs.locks import job_lock
with job_lock("nightly"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))


def refused(job: str) -> str:
    with pytest.raises(UserError) as caught, job_lock(job):
        pass
    return str(caught.value)


def test_a_second_run_of_the_job_fails_at_once_and_names_the_holder() -> None:
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
    with RunLock(tmp_path), pytest.raises(UserError) as caught, RunLock(tmp_path):
        pass
    assert str(caught.value).startswith(f"the run in {tmp_path} is training already (process {os.getpid()} on ")
    with RunLock(tmp_path):
        pass


# A process that was thought dead and only slept.

SLEEPER = """
import sys
from pathlib import Path
from rl_training.errors import RLTrainingError
from rl_training.runs.locks import job_lock, require_not_taken_over, RunLock
run_dir = Path(sys.argv[1])
with job_lock("nightly", "flow run 7"), RunLock(run_dir):
    require_not_taken_over(run_dir)
    print("held", flush=True)
    sys.stdin.readline()
    try:
        require_not_taken_over(run_dir)
    except RLTrainingError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def test_a_sleeping_process_keeps_its_run_until_that_is_taken_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    sleeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sleeper.stdin is not None
    assert sleeper.stdout is not None
    try:
        assert sleeper.stdout.readline() == "held\n"
        sleeper.send_signal(signal.SIGSTOP)
        with pytest.raises(UserError, match=f"process {sleeper.pid} on "), RunLock(tmp_path):
            pass
        with pytest.raises(UserError, match="for flow run 7 since"), job_lock("nightly", "flow run 8"):
            pass
        with job_lock("nightly", "flow run 7"):
            take_over(tmp_path)
            with RunLock(tmp_path):
                require_not_taken_over(tmp_path)
                sleeper.send_signal(signal.SIGCONT)
                out, _ = sleeper.communicate("wake up\n", timeout=LIMIT)
                require_not_taken_over(tmp_path)
    finally:
        sleeper.kill()
        sleeper.communicate()
    assert out.startswith(f"RunTakenOver: the run in {tmp_path} was taken over (process {os.getpid()} on ")
    with RunLock(tmp_path):
        require_not_taken_over(tmp_path)


def test_a_run_that_was_given_away_is_not_ours_until_it_is_trained_again(tmp_path: Path) -> None:
    require_not_taken_over(tmp_path)  # never trained here, so nobody can have taken it over
    with RunLock(tmp_path):
        record_takeover(tmp_path, "process 5 on another machine")
        with pytest.raises(RunTakenOver, match=r"taken over \(process 5 on another machine\); this process writes no"):
            require_not_taken_over(tmp_path)
    with pytest.raises(RunTakenOver):  # after training too: its evaluation and its end are written as well
        require_not_taken_over(tmp_path)
    with RunLock(tmp_path):
        require_not_taken_over(tmp_path)


TAKE_OVER = """
import sys
from pathlib import Path
from rl_training.runs.locks import take_over
take_over(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("asleep_before", "error"), [("stage", RunTakenOver), ("publish", CheckpointNotWritten)])
def test_a_save_under_way_when_the_run_is_taken_over_does_not_come_to_its_place(
    asleep_before: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last moments at which it may fall asleep: before there is anything to sweep, and just before the rename."""
    config = config_from_mapping({"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100})
    root = tmp_path / "checkpoints"

    def save(step: int) -> None:
        write_checkpoint(
            root,
            config=WrittenConfig(config),
            run_uid="u",
            algorithm="ppo",
            num_timesteps=step,
            policy={"w": step},
            trainer={},
        )

    function = getattr(staging, asleep_before)

    def wakes_when_it_is_too_late(*arguments: Path) -> object:
        subprocess.run([sys.executable, "-c", TAKE_OVER, str(tmp_path)], check=True)
        return function(*arguments)

    with RunLock(tmp_path):
        save(1)
        monkeypatch.setattr(staging, asleep_before, wakes_when_it_is_too_late)
        with pytest.raises(error):
            save(2)
    newest, skipped = newest_good(root)
    assert newest is not None
    assert (newest.num_timesteps, skipped) == (1, [])
    assert [path.name for path in root.iterdir()] == ["step_000000000001"]
