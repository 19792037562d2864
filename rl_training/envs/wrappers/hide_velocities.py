"""A wrapper that makes environments partially observable."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

VELOCITIES = {
    "CartPole-v1": (1, 3),
    "MountainCar-v0": (1,),
    "MountainCarContinuous-v0": (1,),
    "Pendulum-v1": (2,),
}
"""The features of an observation that are velocities, by the environment's id."""


class HideVelocities(gym.ObservationWrapper[npt.NDArray[Any], Any, npt.NDArray[Any]]):
    """Leaves the velocities out of the observations of a classic control task.

    A single observation then does not tell where the next one will be, so a policy needs a memory (PPO's
    `network.recurrent`) or a stack of observations (`FrameStackObservation`).

    Args:
        env: An environment of `VELOCITIES`.

    Raises:
        ValueError: The velocities of this environment are not known.
    """

    def __init__(self, env: gym.Env[npt.NDArray[Any], Any]) -> None:
        super().__init__(env)
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        if name not in VELOCITIES:
            raise ValueError(f"got {name}, whose velocities are not known; expected one of {', '.join(VELOCITIES)}")
        assert isinstance(env.observation_space, gym.spaces.Box)
        self._velocities = VELOCITIES[name]
        low, high = (self.observation(bound) for bound in (env.observation_space.low, env.observation_space.high))
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns an observation without its velocities."""
        return np.delete(observation, self._velocities)
