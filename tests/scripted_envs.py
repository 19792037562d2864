"""Environments that pay what a test has written down, and callbacks that settings name."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import gymnasium as gym
from case_envs.plain import Plain

from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.seeding import episode_seeds

(EVALUATED,) = episode_seeds(0, "evaluation", 1)


class Scripted(Plain):
    """Pays each episode's return on its first step.

    An episode of a periodic evaluation gets the next of `returns`, and the last one again when none is left; others,
    such as validation's, get the next one without using it up.
    """

    returns: ClassVar[list[float]] = []
    length = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.next = self.returns[0]
        if seed == EVALUATED and len(self.returns) > 1:
            del self.returns[0]
        return super().reset(seed=seed, options=options)

    def reward(self, action: Any) -> Any:
        return self.next if self.t == 1 else 0.0


gym.register("Scripted-v0", f"{__name__}:Scripted")

SCRIPTED: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 320,
    "num_envs": 2,
    "rollout_steps": 16,
    "batch_size": 32,
    "epochs": 1,
    "network": {"hidden": [8]},
    "evaluation": {
        "every": 32,
        "episodes": 1,
        "final_episodes": 2,
        "num_envs": 1,
        "env_id": "scripted_envs:Scripted-v0",
        "video": False,
    },
}
"""PPO settings with an evaluation every 32 steps whose mean returns are those of `Scripted.returns`."""


class StopsAt(Callback):
    """Asks training to stop at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, state: TrainerState) -> None:
        if state.num_timesteps == self.step:
            state.request_stop()


class Counts(Callback):
    """Counts updates from a number on; its state is in checkpoints."""

    made: ClassVar[list[Counts]] = []

    def __init__(self, start: int = 0, api_token: str = "") -> None:
        self.updates, self.token = start, api_token
        self.made.append(self)

    def on_update_end(self, state: TrainerState) -> None:
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]


class Tells(Counts):
    """Raises an error that repeats its token."""

    def on_update_end(self, state: TrainerState) -> None:
        raise ValueError(f"refused with {self.token}")


class TellsIn(Counts):
    """Repeats its token in the error of one method, or in a warning when it is made."""

    def __init__(self, method: str = "", api_token: str = "") -> None:
        super().__init__(0, api_token)
        if method == "__init__":
            warnings.warn(f"made with {api_token}", stacklevel=2)
        elif method:
            setattr(self, method, self.fail)

    def fail(self, *_: Any) -> Any:
        raise ValueError(f"refused with {self.token}")


def not_a_class(**arguments: Any) -> Callback:
    raise AssertionError("was called")
