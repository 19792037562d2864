"""The end of tracking: in bounded time after a signal, and the process beside training ends soon after it."""

import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from mlflow_store import make_run, ship_all, tracked_run
from waiting import LIMIT

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.runs import stopping
from rl_training.runs.stopping import StopFlag
from rl_training.system import process_beside
from rl_training.system.process_beside import Lifetime
from rl_training.tracking import json_files
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping.run_start import RunStart
from rl_training.tracking.shipping.shipment import Shipment
from rl_training.tracking.shipping.shipper import Shipper
from rl_training.tracking.shipping.shipper_process import SENT

SHIPPER = """
import sys
from pathlib import Path
from rl_training.tracking.shipping import shipper
shipper.DRAIN_SECONDS = 0.5
shipper.exit_now(shipper.main(Path(sys.argv[1]), sys.stdout))
"""
"""The shipper, in less of a hurry with everything than with its end."""


def test_a_second_interruption_does_not_change_how_a_run_has_ended(home, monkeypatch):
    run_dir, config = make_run()
    session = start_tracking(run_dir, config, offline=True)
    begun, interrupted = threading.Event(), threading.Event()

    def close():
        begun.set()
        interrupted.wait(LIMIT)

    def interrupt():
        with pytest.raises(KeyboardInterrupt), session:
            raise KeyboardInterrupt

    monkeypatch.setattr(session.callback, "close", close)
    ending = threading.Thread(target=session.finish, args=("KILLED",), kwargs={"stop_reason": "signal"})
    ending.start()
    assert begun.wait(LIMIT)
    second = threading.Thread(target=interrupt)
    second.start()
    assert not (run_dir / run_layout.STATUS).exists()
    interrupted.set()
    for thread in (ending, second):
        thread.join()
    status = json_files.read_json(run_dir / run_layout.STATUS)
    assert (status["status"], status["stop_reason"]) == ("KILLED", "signal")


class SlowShipper:
    """A shipper that sends a piece each 10 s by the test's clock, and has a report after the last one."""

    def __init__(self, clock, pieces):
        self._clock = clock
        report = {"sent": 3, "unsent": 0, "message": "", "run_id": "a"}
        last = {"report": report, "deleted": False, "elsewhere": False}
        self._lines = [json.dumps(line) for line in [*([SENT] * pieces), last]]

    def announce_end(self):
        pass

    def read_line(self, seconds):
        self._clock.now += min(seconds, 10.0)
        return self._lines.pop(0) if seconds >= 10.0 else None

    def wait(self, seconds):
        pass

    def explain_silence(self):
        return "no answer in time"


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def finish_with(pieces, clock, monkeypatch, stop=None):
    monkeypatch.setattr("rl_training.tracking.session.time", clock)
    run_dir, config = make_run()
    session = start_tracking(run_dir, config, offline=True, stop=stop)
    session._shipper = SlowShipper(clock, pieces)
    session._start = RunStart(session._shipper, "sqlite:////mlflow.db")
    session._start.address = {"run_id": "a"}
    report = session.finish("FINISHED", stop_reason="completed")
    return report.message.partition(";")[0], clock.now - 100.0


def test_the_end_of_a_run_waits_as_long_as_pieces_are_sent_and_no_longer_than_a_minute(home, monkeypatch):
    assert finish_with(3, Clock(), monkeypatch) == ("", 40.0)  # three pieces and the report
    assert finish_with(30, Clock(), monkeypatch) == ("no answer in time", 60.0)


def test_after_a_signal_pieces_that_are_sent_do_not_prolong_the_end(home, monkeypatch):
    clock, stop = Clock(), StopFlag()
    monkeypatch.setattr(stopping, "time", clock)
    stop.request("signal")
    assert finish_with(30, clock, monkeypatch, stop) == ("no answer in time", 20.0)


@pytest.mark.parametrize(("extensions", "ends_after"), [(0, 12.0), (1, 22.0), (5, 62.0)])
def test_a_process_beside_training_outlives_it_from_its_last_extension(monkeypatch, extensions, ends_after):
    clock, ended = Clock(), []
    monkeypatch.setattr(process_beside, "time", clock)
    monkeypatch.setattr(process_beside, "exit_now", ended.append)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)  # the test does what its thread would do
    lifetime = Lifetime(lambda: ended.append("timeout"), 12.0)
    lifetime.parent = -1  # has ended
    left = [10.0] * extensions

    def sleep(seconds):  # a piece is sent each 10 s
        clock.now += left.pop() if left else seconds
        if len(left) < extensions and clock.now % 10 == 0:
            lifetime.extend()

    monkeypatch.setattr(clock, "sleep", sleep)
    lifetime._watch()
    assert lifetime.over.is_set()
    assert (clock.now - 100.0, ended) == (ends_after, ["timeout", 1])


def test_a_shipper_has_more_time_for_each_piece_while_training_waits(home, monkeypatch):
    extended = []

    class Dying(io.StringIO):  # training goes after the second piece
        def write(self, text):
            if len(extended) == 2:
                raise BrokenPipeError
            return super().write(text)

    over = threading.Event()
    over.set()
    run_dir = tracked_run()
    (run_dir / run_layout.SHIPPER_LOCK).touch()
    shipment = Shipment(run_dir, f"sqlite:///{home}/mlflow.db")
    shipment.open()
    pieces = iter([True, OSError("away"), True, True, False])

    def ship(status):
        if isinstance(piece := next(pieces), OSError):
            raise piece
        return piece

    monkeypatch.setattr(shipment, "ship", ship)
    replies = Dying()
    Shipper(shipment, replies, SimpleNamespace(over=over, parent=1, extend=lambda: extended.append(1))).run()
    assert [json.loads(line) for line in replies.getvalue().splitlines()] == [SENT, SENT]
    assert len(extended) == 2


def test_a_shipper_gives_way_to_training_and_to_nobody_after_it(home, monkeypatch):
    over, normal, priorities = threading.Event(), os.nice(0), []
    run_dir = tracked_run()
    (run_dir / run_layout.SHIPPER_LOCK).touch()
    shipment = Shipment(run_dir, f"sqlite:///{home}/mlflow.db")
    shipment.open()

    def ship(status):
        priorities.append((status is not None, os.nice(0)))
        if len(priorities) == 2:
            over.set()
        return len(priorities) < 4

    monkeypatch.setattr(shipment, "ship", ship)
    Shipper(shipment, io.StringIO(), SimpleNamespace(over=over, parent=1, extend=lambda: None)).run()
    low = min(normal + 10, 19)
    assert priorities == [(False, low), (False, low), (True, normal), (True, normal)]


@pytest.mark.slow
def test_after_a_signal_a_run_does_not_wait_for_a_shipper_that_hangs(home, monkeypatch):
    monkeypatch.setattr(stopping, "MLFLOW_SECONDS", 1.0)
    run_dir, config = make_run()
    stop = StopFlag()
    session = start_tracking(run_dir, config, stop=stop)
    session.log(1, {"train/loss": 1.0}, "update")
    os.kill(session._shipper.popen.pid, signal.SIGSTOP)
    try:
        stop.request("signal")
        report = session.finish("KILLED", stop_reason="signal")
    finally:
        session._shipper.popen.kill()
        session._shipper.popen.wait()
    assert report.unsent == 1
    assert report.message == f"no answer in time; `rl-training sync {run_dir}` sends the rest"


def shipper_of(run_dir, uri):
    return subprocess.Popen(
        [sys.executable, "-c", SHIPPER, str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri},
    )


@pytest.mark.slow
def test_a_shipper_that_has_not_begun_ends_with_training_too(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    run_dir = tracked_run()
    with socket.socket() as hangs:  # takes connections, and answers nothing for MLflow's 10 seconds, three times
        hangs.bind(("127.0.0.1", 0))
        hangs.listen()
        process = shipper_of(run_dir, f"http://127.0.0.1:{hangs.getsockname()[1]}")
        assert json.loads(process.stdout.readline()) == {"step": "loaded"}
        out, _ = process.communicate(timeout=LIMIT)  # closes its standard input: training is gone
    assert process.returncode == 1
    assert json.loads(out) == {"error": "no answer within 0 s of the end of training", "server": True}


@pytest.mark.slow
def test_a_shipper_that_nobody_listens_to_says_in_its_log_what_came_of_the_run(home):
    run_dir = tracked_run()
    process = shipper_of(run_dir, f"sqlite:///{home}/mlflow.db")
    assert json.loads(process.stdout.readline()) == {"step": "loaded"}
    assert "run_id" in json.loads(process.stdout.readline())
    process.stdout.close()
    process.stdin.close()
    log = process.stderr.read()
    process.wait()
    assert "Traceback" not in log
    assert "{" not in log


@pytest.mark.slow
def test_a_deleted_run_is_reported_without_other_advice(home, client):
    run_dir, config = make_run()
    with start_tracking(run_dir, config) as session:
        session.log(1, {"train/loss": 1.0}, "update")
    client.delete_run(session.run_id)
    with pytest.raises(TrackingError) as caught:
        start_tracking(run_dir, config)
    assert str(caught.value) == (  # and nothing of a server to be started, or of --offline
        f"run {session.run_id} was deleted in MLflow; restore it there, "
        f"or `rl-training sync {run_dir} --new-run` sends everything to a new run"
    )


def test_what_is_left_is_counted_in_words(home):
    run_dir = tracked_run()
    (run_dir / "metrics.jsonl").write_text(
        "".join(f'{{"event": "eval", "step": {i}, "time": 1.0, "metrics": {{"a": 1.0}}}}\n' for i in range(1_200))
    )
    checkpoint = run_dir / "checkpoints" / "step_000000000100"
    checkpoint.mkdir(parents=True)
    (checkpoint / "policy.pt").write_bytes(b"weights")
    (checkpoint / "manifest.json").write_text("{}")
    shipment = Shipment(run_dir, f"sqlite:///{home}/mlflow.db")
    shipment.open()
    assert shipment.describe_unsent() == "1,200 metric values, 1 checkpoint, 2 files"  # config.yaml and metadata.json
    assert ship_all(run_dir).describe_unsent() == "how the run ended"
    ended = {"status": "FINISHED", "stop_reason": "completed", "error": None, "time": 1.0}
    assert ship_all(run_dir, lambda: ended).describe_unsent() == ""


def test_a_run_that_fails_says_what_was_not_sent(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    run_dir, config = make_run()
    session = start_tracking(run_dir, config, offline=True)
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError), session:
        _ = 1 / 0
    assert caplog.messages == [f"offline: `rl-training sync {run_dir}` sends the run to MLflow"]
    assert json_files.read_json(run_dir / run_layout.STATUS)["status"] == "FAILED"
