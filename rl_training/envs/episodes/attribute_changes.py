"""Sets attributes of environments, and keeps a record from which a replay of the episode sets them again.

A record may come from an untrusted checkpoint. Only an attribute that exists, is public and holds plain data is set
from it, and only to plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorWrapper

from rl_training.envs.episodes.plain_values import copy_plain, is_plain
from rl_training.errors import EnvironmentRefused


class AttributeChanges:
    """The attributes that were set on one environment, and when.

    Args:
        env: The environment in the wrappers of the settings, or a native vector environment.
        env_id: The id in the settings, for messages.
    """

    def __init__(self, env: Any, env_id: str) -> None:
        self._env, self._env_id = env, env_id
        self._now: dict[str, Any] = {}
        self._seeded: dict[str, Any] = {}
        self._begun: dict[str, Any] = {}
        self._during: list[tuple[int, str, Any]] = []

    def find(self, name: str) -> Any:
        """Returns an attribute of the outermost layer that has it.

        Raises:
            EnvironmentRefused: No layer has it.
        """
        return getattr(self._require_owner(name), name)

    def has(self, name: str) -> bool:
        """Returns whether a layer has an attribute."""
        return self._find_owner(name) is not None

    def set(self, name: str, value: Any, index: int) -> bool:
        """Sets an attribute on the outermost layer that has it.

        Args:
            name: Its name.
            value: Its value; plain data is copied.
            index: Number of actions since the game began.

        Returns:
            Whether a replay can set it again: the attribute is public, and its values before and now are plain data.

        Raises:
            EnvironmentRefused: No layer has such an attribute.
        """
        owner = self._require_owner(name)
        exact = self._can_replay(owner, name) and is_plain(value)
        if not exact:
            setattr(owner, name, value)
            self._now.pop(name, None)
            return False
        setattr(owner, name, copy_plain(value))
        self._now[name] = copy_plain(value)
        self._during.append((index, name, copy_plain(value)))
        return True

    def begin(self, *, seeded: bool) -> None:
        """Notes the current values as those at the start of an episode.

        Args:
            seeded: Whether the reset was seeded.
        """
        if self._now or self._during:
            self._begun, self._during = dict(self._now), []
            if seeded:
                self._seeded = dict(self._now)

    def state_dict(self) -> dict[str, Any]:
        """Returns the record; empty if no attribute was set."""
        if not self._now:
            return {}
        during = [list(change) for change in self._during]
        return {"now": self._now, "seeded": self._seeded, "begun": self._begun, "during": during}

    def apply(self, values: Mapping[str, Any], index: int = 0) -> None:
        """Sets attributes from a record.

        Raises:
            EnvironmentRefused: A name or a value is not one that `set` records.
        """
        for name, value in values.items():
            owner = self._require_owner(name)
            if not (self._can_replay(owner, name) and is_plain(value)):
                raise EnvironmentRefused(
                    f"environment {self._env_id!r}: a checkpoint sets the attribute {name!r}, which is not public "
                    f"plain data here"
                )
            self.set(name, value, index)

    def _find_owner(self, name: str) -> Any:
        layer = self._env
        while not hasattr(layer, name):
            if not isinstance(layer, gym.Wrapper | VectorWrapper):
                return None
            layer = layer.env
        return layer

    def _require_owner(self, name: str) -> Any:
        owner = self._find_owner(name)
        if owner is None:
            nearest = get_close_matches(name, [x for x in dir(self._env.unwrapped) if not x.startswith("_")], n=1)
            advice = f"; did you mean {nearest[0]}?" if nearest else ""
            raise EnvironmentRefused(f"environment {self._env_id!r} has no attribute {name!r}{advice}")
        return owner

    @staticmethod
    def _can_replay(owner: Any, name: str) -> bool:
        return not name.startswith("_") and is_plain(getattr(owner, name))
