"""The state of the rows of a native vector environment, from which a run is resumed within episodes.

The episodes of the rows begin at different steps and draw from one random state, so they can't be played again one by
one. The environment itself must return its state and take it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol, runtime_checkable

from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rl_training.state_checks import require_same_form, validate


@runtime_checkable
class ResumableVectorEnv(Protocol):
    """The methods of a native vector environment that is resumed within episodes."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next steps depend on, except `np_random`: arrays, numbers, text, lists and dicts."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned, in an environment that was reset; the state may come from anyone."""
        ...


def find_resumable(envs: VectorEnv[Any, Any, Any]) -> ResumableVectorEnv | None:
    """Returns the environment beneath its wrappers if it has the methods; None otherwise."""
    core = envs.unwrapped
    return core if isinstance(core, ResumableVectorEnv) else None


def copy_state(env: ResumableVectorEnv | None, observation: NDArray[Any]) -> dict[str, Any]:
    """Returns the part of a snapshot that `restore_state` takes; empty without a resumable environment.

    Args:
        env: The environment.
        observation: [N, *O] the newest observations.
    """
    return {} if env is None else {"state": deepcopy(env.state_dict()), "observation": observation.copy()}


def restore_state(env: ResumableVectorEnv, snapshot: Mapping[str, Any], like: NDArray[Any]) -> NDArray[Any]:
    """Restores the state of a snapshot; returns its observations [N, *O], which have the form of `like`.

    Raises:
        CheckpointError: The observations have another form, or the state is no mapping.
    """
    observation: NDArray[Any] = require_same_form("observation", snapshot["observation"], like).copy()
    env.load_state_dict(deepcopy(validate("state", snapshot["state"], dict[str, Any])))
    return observation
