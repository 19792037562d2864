"""A new Box2D world for each episode of Gymnasium's BipedalWalker.

Its world outlives the episode, and in it the order of contacts, so that a seed gives another episode later in an
environment's life than at its beginning: evaluations would not repeat, and no episode but the first could be replayed.
Gymnasium gives LunarLander a new world in each reset for the same reason (Farama-Foundation/Gymnasium, issue 728).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

_BIPEDAL_WALKER = ("gymnasium.envs.box2d.bipedal_walker", "BipedalWalker")


def with_fresh_world(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Returns the environment in `FreshWorld` where it is a BipedalWalker, of any kind; any other as it is."""
    kinds = [(kind.__module__, kind.__name__) for kind in type(env.unwrapped).__mro__]
    return FreshWorld(env) if _BIPEDAL_WALKER in kinds else env


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Makes a new world before each reset; each episode is then as if it were the environment's first."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Empties the old world, puts a new one in its place, and resets the environment."""
        walker: Any = self.env.unwrapped
        walker._destroy()
        walker.world = type(walker.world)(gravity=walker.world.gravity)
        return self.env.reset(seed=seed, options=options)
