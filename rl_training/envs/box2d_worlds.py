"""Gives each episode of Gymnasium's BipedalWalker a new Box2D world.

Gymnasium keeps the world across episodes, and with it the order of contacts, so the same seed leads to different
episodes early and late in an environment's life: evaluations would not repeat, and only the first episode could be
replayed. Gymnasium gives LunarLander a new world in each reset for the same reason (Farama-Foundation/Gymnasium, issue
728).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

_BIPEDAL_WALKER = ("gymnasium.envs.box2d.bipedal_walker", "BipedalWalker")


def wrap_with_fresh_world(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Returns a BipedalWalker, or an environment derived from it, in `FreshWorld`; any other environment unchanged."""
    kinds = [(kind.__module__, kind.__name__) for kind in type(env.unwrapped).__mro__]
    return FreshWorld(env) if _BIPEDAL_WALKER in kinds else env


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Makes a new world before each reset, so that every episode runs as if it were the environment's first."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Replaces the world by a new one and resets the environment."""
        walker: Any = self.env.unwrapped
        walker._destroy()
        walker.world = type(walker.world)(gravity=walker.world.gravity)
        return self.env.reset(seed=seed, options=options)
