"""Callbacks: the order of events, errors, and saved state."""

from pathlib import Path
from typing import Any

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback, CallbackError, CallbackList, TrainerState


def make_state() -> TrainerState:
    config = PPOConfig(env_id="CartPole-v1", total_timesteps=1000)
    return TrainerState(config=config, run_dir=Path("run"), run_uid="uid", stop=StopFlag())


class Recorder(Callback):
    def __init__(self, name: str, calls: list[str], fails: bool = False) -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def on_update_end(self, state: TrainerState) -> None:
        self.calls.append(self.name)
        if self.fails:
            raise ValueError(f"{self.name} is out of ink")


class Patience(Callback):
    def __init__(self) -> None:
        self.left = 3

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: Any) -> None:
        self.left = state["left"]


def test_callbacks_see_an_event_in_the_order_given() -> None:
    calls: list[str] = []
    CallbackList([Recorder("a", calls), Recorder("b", calls)]).call("on_update_end", make_state())
    assert calls == ["a", "b"]


def test_an_error_is_named_and_the_other_callbacks_still_see_the_event() -> None:
    calls: list[str] = []
    callbacks = CallbackList([Recorder("a", calls, fails=True), Recorder("b", calls)])
    with pytest.raises(CallbackError, match=r"callback Recorder\.on_update_end raised ValueError: a is out of ink"):
        callbacks.call("on_update_end", make_state())
    assert calls == ["a", "b"]


def test_every_event_does_nothing_by_default() -> None:
    state = make_state()
    for event in ("on_train_start", "on_collect_end", "on_update_end", "on_eval_end", "on_checkpoint_end"):
        CallbackList([Callback()]).call(event, state)  # type: ignore[arg-type]
    assert not state.stop.requested


def test_request_stop_sets_the_flag_and_the_first_cause_stays() -> None:
    state = make_state()
    state.request_stop()
    state.stop.request("signal")
    assert state.stop.cause == "callback"


def test_callback_state_survives_by_position_and_class() -> None:
    first = Patience()
    first.left = 1
    saved = CallbackList([Callback(), first]).state_dict()
    again = Patience()
    CallbackList([Callback(), again]).load_state_dict(saved)
    assert again.left == 1


def test_a_callback_that_the_checkpoint_does_not_know_starts_afresh() -> None:
    patience = Patience()
    CallbackList([patience]).load_state_dict(CallbackList([Callback()]).state_dict())
    assert patience.left == 3
