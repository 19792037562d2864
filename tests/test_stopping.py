"""Signals set the stop flag once, and the previous handlers are restored."""

import math
import os
import signal
import threading
import time

import pytest
from waiting import LIMIT, wait_for

from rl_training.runs import stopping
from rl_training.runs.stopping import StopFlag, Terminated, interrupt_on_signals, stop_on_signals
from rl_training.system.signal_handlers import SIGNALS


def test_signals_set_the_flag_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
        stop = StopFlag()
        with interrupt_on_signals(), stop_on_signals(stop):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # a second signal spoils nothing
        assert stop.cause == "signal"
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_second_ctrl_c_in_a_script_interrupts_at_once_and_a_second_kill_does_not() -> None:
    stop = StopFlag()
    with stop_on_signals(stop):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert stop.seconds_left() > 0.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.seconds_left() == 0.0  # the end of the run does not wait for MLflow
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_time_is_short_after_a_signal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now, stop = 100.0, StopFlag()
    assert stop.seconds_left() == math.inf
    stop.request("callback")
    assert stop.seconds_left() == math.inf
    stop.request("signal")
    now = 107.0
    stop.request("signal")  # the first one counts
    assert stop.seconds_left() == 13.0
    now = 130.0
    assert stop.seconds_left() == 0.0


def test_outside_of_the_main_thread_no_handler_is_touched() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def body() -> None:
        with stop_on_signals(StopFlag()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_interrupts_once_and_the_next_one_spares_the_cleaning_up(number: int, kind: type) -> None:
    cleaned = []

    def body() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt) as caught, interrupt_on_signals():
        body()
    assert caught.type is kind
    assert cleaned == [True]


def test_cleaning_up_that_hangs_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "CLEANUP_SECONDS", 0.1)

    def body() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("it is not interrupted")

    with pytest.raises(KeyboardInterrupt), interrupt_on_signals():
        body()


def test_a_handler_that_the_block_has_put_in_place_stays() -> None:
    with interrupt_on_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


@pytest.mark.parametrize("polls", [True, False])
def test_training_that_does_not_hear_is_given_up(polls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "UNRESPONSIVE_SECONDS", 0.2)
    monkeypatch.setattr(stopping, "_POLL_SECONDS", 0.02)
    stop, given_up = StopFlag(), threading.Event()
    with stop_on_signals(stop, given_up.set):
        os.kill(os.getpid(), signal.SIGTERM)
        if polls:
            assert stop.requested
        assert given_up.wait(1.0 if polls else LIMIT) is not polls


def test_a_notebook_whose_training_does_not_hear_is_not_ended_but_told_how_to_interrupt_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stopping, "UNRESPONSIVE_SECONDS", 0.2)
    monkeypatch.setattr(stopping, "_POLL_SECONDS", 0.02)
    given_up: list[bool] = []
    with stop_on_signals(StopFlag(), lambda: given_up.append(True)):
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: "interrupt it again to stop it without saving" in caplog.text)
    assert not given_up


def test_a_request_of_training_itself_is_fulfilled_and_one_by_a_signal_stays() -> None:
    stop = StopFlag()
    stop.request("return_reached")
    stop.fulfill()
    assert not stop.requested
    stop.request("callback")
    stop.request("signal")
    stop.fulfill()
    assert stop.cause == "signal"
