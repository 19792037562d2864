"""Signals set the flag, once, and the former handlers come back."""

import os
import signal
import threading

from rl_training.runtime.stopping import StopFlag, stop_on_signals


def test_sigterm_and_sigint_set_the_flag_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGINT):
        stop = StopFlag()
        with stop_on_signals(stop):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # a second signal spoils nothing
        assert stop.cause == "signal"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


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
