"""The environment of a film: evaluation's environment, which returns pictures, in a process of its own.

If the renderer is missing, hangs or crashes, only the film is lost. An environment that only this process knows, such
as one of a notebook, is played here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator

from rl_training.config.resume_rules import SESSION
from rl_training.config.settings import TrainConfig
from rl_training.envs.env_lookup import find_plugin_module, find_spec
from rl_training.envs.factory import make_env
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.errors import EnvironmentFault
from rl_training.system.headless_rendering import explain_failure

USUAL_FPS = 30.0
"""Frames a second of an environment whose metadata has no `render_fps`, as Gymnasium assumes."""


class FilmedStep(NamedTuple):
    """The result of a step."""

    observation: Any
    reward: float
    over: bool
    """Whether the episode has ended, by a terminal state or a time limit."""


def list_render_modes(config: TrainConfig) -> tuple[str, ...]:
    """Returns the render modes of evaluation's environment by its metadata; no environment is created.

    Raises:
        EnvironmentRefused: The environment does not exist.
    """
    spec = find_spec(config.for_evaluation().env_id)
    if spec.entry_point is None:
        return ()
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    metadata = getattr(creator, "metadata", None)
    return tuple(metadata.get("render_modes", ())) if isinstance(metadata, Mapping) else ()


def can_be_filmed(config: TrainConfig) -> bool:
    """Returns whether evaluation's environment can return pictures, by its metadata; no environment is created.

    Raises:
        EnvironmentRefused: The environment does not exist.
    """
    chosen = config.for_evaluation().env_kwargs.get("render_mode", "rgb_array")
    return bool(chosen == "rgb_array" and "rgb_array" in list_render_modes(config))


class FilmedEnv:
    """One environment for evaluation that renders to arrays.

    Args:
        config: The settings of a run whose environment `can_be_filmed`.
        answer_seconds: Time limit for creating the environment, and for each call to it; None waits forever.

    Raises:
        EnvironmentRefused: The environment can't be created.
    """

    def __init__(self, config: TrainConfig, *, answer_seconds: float | None = None) -> None:
        played = config.for_evaluation()
        rendered = {**played.env_kwargs, "render_mode": "rgb_array"}
        played = played.model_copy(update={"num_envs": 1, "vectorization": "sync", "env_kwargs": rendered})
        groups = [range(1)] if _is_known_here_alone(played) else [range(0), range(1)]  # the others: a worker process
        self._env = MaskedVectorEnv(played, groups, partial(make_env, played), answer_seconds=answer_seconds)

    @property
    def frame_seconds(self) -> float:
        """The time from one step to the next in the environment's own time."""
        (metadata,) = self._env.call("metadata")
        return 1.0 / float(metadata.get("render_fps") or USUAL_FPS)

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations."""
        return self._env.single_observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""
        return self._env.single_action_space

    def reset(self, seed: int) -> Any:
        """Begins an episode and returns its first observation."""
        ((observation, _),) = self._env.call("reset", seed=seed)
        return observation

    def step(self, action: Any) -> FilmedStep:
        """Steps the environment."""
        _, rewards, terminated, truncated, _ = self._env.step(np.asarray(action)[np.newaxis])
        (observation,) = self._env.call("last_observation")
        return FilmedStep(observation, float(rewards[0]), bool(terminated[0] or truncated[0]))

    def read_numbers(self) -> Mapping[str, float]:
        """Returns the numbers of the episode that the newest step ended; see `EpisodeNumbers`."""
        (numbers,) = self._env.numbers(np.array([0]))
        return numbers

    def render(self) -> npt.NDArray[np.uint8]:
        """Returns the picture of the current state, uint8 [height, width, 3].

        Raises:
            EnvironmentFault: The environment can't be rendered, did not answer in time, or its picture has another
                form.
        """
        try:
            (frame,) = self._env.call("render")
        except EnvironmentFault as error:
            if (advice := explain_failure(str(error))) is None:
                raise
            raise EnvironmentFault(f"{error}; {advice}") from None
        pixels: npt.NDArray[Any] = np.asarray(frame)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            got = f"an array of {pixels.dtype} {list(pixels.shape)}" if pixels.dtype != object else repr(frame)[:80]
            raise EnvironmentFault(f"render() returned {got}; expected uint8 [height, width, 3]")
        return pixels

    def close(self) -> None:
        """Ends the process of the environment."""
        self._env.close()


def _is_known_here_alone(config: TrainConfig) -> bool:
    """Returns whether another process could not make the environment of the settings."""
    names = (config.env_id, *(wrapper.name for wrapper in config.wrappers))
    in_session = any(name.rpartition(":")[0] == SESSION for name in names)
    return in_session or find_plugin_module(config.env_id) is not None
