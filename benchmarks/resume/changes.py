"""A callback that changes the training environments at many steps, within episodes and between them."""

from __future__ import annotations

from typing import Any

from rl_training.runtime.callbacks import Callback, TrainerState

ATTRIBUTES: dict[str, tuple[str, tuple[float, ...]]] = {
    "CartPole-v1": ("force_mag", (9.0, 11.5, 10.25)),
    "Pendulum-v1": ("g", (9.5, 10.5, 8.0)),
    "LunarLander-v3": ("gravity", (-9.0, -11.0, -10.5)),
    "LunarLanderContinuous-v3": ("gravity", (-9.0, -11.0, -10.5)),
    "HalfCheetah-v5": ("frame_skip", (4, 6, 5)),
}
"""An attribute of each environment on which its dynamics depend (in LunarLander from its next reset on), and values."""

ATTRIBUTE_EVERY, OPTIONS_EVERY = 14, 46
"""Environment steps between two changes of the attribute, and of the reset options."""


def make_curriculum(env_id: str) -> list[dict[str, Any]]:
    """Returns stages that begin with the run, before the stop and after it."""
    name, values = ATTRIBUTES[env_id]
    first, *later = [{"attributes": {name: value}} for value in values]
    return [first, *({"from_step": step, **stage} for step, stage in zip((101, 331), later, strict=True))]


class ChangeEnvironments(Callback):
    """Sets an attribute, to another value in each environment, and the reset options of later episodes."""

    def on_step(self, state: TrainerState) -> None:
        """Changes the environments where that is due; the changes are a function of the step alone."""
        assert state.envs is not None
        step = state.num_timesteps
        if step % ATTRIBUTE_EVERY == 0:
            name, values = ATTRIBUTES[state.config.env_id]
            turn = step // ATTRIBUTE_EVERY
            state.envs.set_attr(name, [values[(turn + i) % len(values)] for i in range(state.envs.num_envs)])
        if step % OPTIONS_EVERY == 0:
            bound = 0.01 + step / 10_000
            state.envs.set_reset_options({"low": -bound, "high": bound, "x_init": bound, "y_init": 0.5})
