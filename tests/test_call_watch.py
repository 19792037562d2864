"""A call into an environment that does not return is named in a warning, and ended if that is possible."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.contract import call_watch
from rl_training.envs.contract.call_watch import CallBlocked, CallWatch
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation.validate import ValidationReport, validate_env


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_watch, "WARN_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(call_watch, "CALL_SECONDS", 0.5)
    monkeypatch.setattr("rl_training.envs.validation.opening.MAKING_SECONDS", 1.0)
    monkeypatch.setattr(call_watch, "_LOOK_SECONDS", 0.02)


def validate(name: str = "HangsLate", **env_kwargs: Any) -> ValidationReport:
    config = PPOConfig(
        env_id=f"case_envs:{name}-v0", total_timesteps=1, num_envs=2, rollout_steps=128, env_kwargs=env_kwargs
    )
    return validate_env(config)


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "busy"])
@pytest.mark.parametrize(
    ("env_kwargs", "step", "message"),
    [
        ({"at": 7}, 7, "step did not return within 0.5 s on the action "),
        ({"at": 1}, 1, "the first step did not return within 0.5 s"),
        ({"during": "reset"}, 0, "the first reset did not return within 0.5 s"),
        ({"during": "init"}, None, "making it did not return within 1 s"),
    ],
)
def test_a_call_that_never_returns_is_a_fatal_finding(
    env_kwargs: dict[str, Any], step: int | None, message: str, busy: bool
) -> None:
    report = validate(busy=busy, **env_kwargs)
    (finding,) = report.findings
    assert (finding.severity, finding.code, finding.step) == ("fatal", "blocked", step)
    assert finding.message.startswith(message)


def test_one_that_blocks_only_in_the_episodes_played_for_the_speed_is_fatal_too() -> None:
    (finding,) = validate(at=33).findings
    assert (finding.severity, finding.code, finding.step) == ("fatal", "blocked", 33)
    assert finding.message == "a later episode, played for its speed, did not return within 0.5 s"


def test_an_instance_that_blocks_beside_another_is_fatal() -> None:
    (finding,) = validate("HangsBeside").findings  # of its three instances the last is the twin
    assert (finding.severity, finding.code, finding.step) == ("fatal", "blocked", 1)
    assert finding.message == "step of a second instance did not return within 0.5 s"


def test_closing_that_never_returns_is_a_warning() -> None:
    (finding,) = validate(during="close").findings
    assert (finding.severity, finding.code, finding.count) == ("warning", "close", 3)
    assert finding.message == "close did not return within 0.5 s"


def test_the_call_is_named_while_it_blocks(caplog: pytest.LogCaptureFixture) -> None:
    validate(at=7)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            "environment case_envs:HangsLate-v0: step 7 has not returned for 0.2 s; it is ended after 0.5 s",
        )
    ]


def test_in_another_thread_it_is_named_and_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[str] = []

    def play() -> None:
        with CallWatch("Slow-v0") as watch:
            answers.append(watch.call("step 3", lambda: _returned_after(0.8)))

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert answers == ["returned"]
    assert caplog.messages == ["environment Slow-v0: step 3 has not returned for 0.2 s; it can't be ended from here"]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_in_training_it_is_named_and_waited_for(vectorization: str, caplog: pytest.LogCaptureFixture) -> None:
    config = PPOConfig(
        env_id="case_envs:SlowReset-v0",
        normalization={"reward": False},
        env_kwargs={"step_seconds": 0.6, "reset_seconds": 0.0},
        total_timesteps=1,
        num_envs=1,
        vectorization=vectorization,
    )
    threads = threading.active_count()
    envs = TrainingEnvs(config, gamma=None)
    envs.start()
    envs.step(np.zeros(1, np.int64))
    envs.close()
    assert caplog.messages == [
        "environment case_envs:SlowReset-v0: a step in training has not returned for 0.2 s; the run waits for it"
    ]
    assert threading.active_count() == threads


def test_a_call_that_cannot_be_ended_is_reported_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    # A call with signals held back stands for one in compiled code that does not come back to Python.
    def blocks() -> str:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        return _returned_after(1.0)

    with CallWatch("Native-v0") as watch, pytest.raises(CallBlocked):
        watch.call("step 3", lambda: _and_then(blocks(), signal.SIG_UNBLOCK))
    assert caplog.messages[1].startswith("environment Native-v0: step 3 could not be ended after 0.5 s")
    assert "kill -9 " in caplog.messages[1]


def test_signals_are_as_before_and_one_that_is_used_is_kept() -> None:
    with CallWatch("Plain-v0") as watch:
        assert watch.call("step 1", lambda: 5) == 5
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL

    def handler(signum: int, frame: Any) -> None:
        """Does nothing."""

    signal.signal(signal.SIGALRM, handler)
    try:
        with CallWatch("Plain-v0") as watch:
            assert watch.call("step 1", lambda: _returned_after(0.7)) == "returned"
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_an_error_of_the_call_passes() -> None:
    def fails() -> None:
        raise OSError("no level")

    with CallWatch("Plain-v0") as watch, pytest.raises(OSError, match="no level"):
        watch.call("step 1", fails)


def _returned_after(seconds: float) -> str:
    time.sleep(seconds)
    return "returned"


def _and_then(value: str, how: Any) -> str:
    signal.pthread_sigmask(how, {signal.SIGALRM})
    return value
