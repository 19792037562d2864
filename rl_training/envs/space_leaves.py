"""The leaves of a nested space, each with its path and the names of its features in messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from rl_training.errors import EnvironmentRefused


class UnsupportedSpace(EnvironmentRefused):
    """A space that can't be converted to arrays; the message names the space and the supported ones."""


def join_path(path: tuple[str | int, ...]) -> str:
    """Returns keys and positions as messages show them: `arm.position`."""
    return ".".join(str(key) for key in path)


@dataclass(frozen=True)
class Leaf:
    """A part of a nested space that is not itself nested."""

    path: tuple[str | int, ...]
    """Keys of `Dict` and positions in `Tuple` spaces, outermost first; empty if the space is not nested."""
    space: gym.Space[Any]
    """The space of the part."""

    def pick(self, observation: Any) -> Any:
        """Returns this part of an observation, or of a batch of observations."""
        for key in self.path:
            observation = observation[key]
        return observation

    @property
    def name(self) -> str:
        """The path as messages show it: `camera`, `arm.position`; empty for a space that is not nested."""
        return join_path(self.path)

    def feature(self, index: tuple[int, ...]) -> str:
        """Returns the name of one number in this part: `1`, `[0, 2]` or `arm.position[2]`."""
        if not index:
            return self.name or "0"
        if not self.path and len(index) == 1:
            return str(index[0])
        return f"{self.name}[{', '.join(str(i) for i in index)}]"


def list_leaves(space: gym.Space[Any], path: tuple[str | int, ...] = ()) -> list[Leaf]:
    """Returns the leaves of `space`: those of a `Dict` in the order of its keys, those of a `Tuple` by position."""
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in list_leaves(part, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for key, part in enumerate(space.spaces) for leaf in list_leaves(part, (*path, key))]
    return [Leaf(path, space)]


def list_mask_leaves(space: gym.Space[Any], key: str) -> list[Leaf]:
    """Returns the leaves of a `Dict` space that hold the action mask: several if it is a tuple of arrays.

    Raises:
        UnsupportedSpace: The space has no such key, or a leaf there is not an array.
    """
    leaves = [leaf for leaf in list_leaves(space) if isinstance(space, spaces.Dict) and leaf.path[0] == key]
    if not leaves:
        found = f"the keys {', '.join(map(str, space.spaces))}" if isinstance(space, spaces.Dict) else f"{space}"
        raise UnsupportedSpace(
            f"action_mask: got {key!r}, and observations have {found}; expected a key of a Dict observation, or info"
        )
    for leaf in leaves:
        if not isinstance(leaf.space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
            raise UnsupportedSpace(
                f"action_mask: observation {leaf.name} is {leaf.space}; expected a 0 or 1 for each action, such as "
                f"MultiBinary(n), or a tuple of these for MultiDiscrete actions"
            )
    return leaves


def has_same_keys(space: spaces.Dict, observation: Any) -> bool:
    """Returns whether `observation` is a mapping with exactly the keys of `space`."""
    return isinstance(observation, Mapping) and set(observation) == set(space.spaces)
