"""Wrappers for Atari games that wait for FIRE, or in which a player has several lives."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class FireReset(gym.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE when a game starts and after each lost life, for games that wait for it, such as Breakout.

    Without it, a greedy policy that never chooses FIRE waits until the time limit. The press takes one step of the
    environment beneath; after a lost life it is part of the step in which the life was lost, with its reward. So
    training and evaluation see the same game, whether or not a lost life ends an episode (Mnih et al., 2015, press FIRE
    at the reset alone).

    Args:
        env: An Atari game; in the settings, the wrapper belongs between `AtariPreprocessing` and a frame stack.

    Raises:
        ValueError: The game has no action FIRE.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        meanings = list(game.get_action_meanings())
        if "FIRE" not in meanings:
            raise ValueError(f"the game has the actions {', '.join(meanings)}, and no FIRE; leave FireReset out")
        self._fire = meanings.index("FIRE")
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a game and presses FIRE."""
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(self._fire)
        if terminated or truncated:
            observation, info = self.env.reset(options=options)
        self._lives = count_lives(self.env)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps, and presses FIRE if a life was lost and the game continues."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives, before = count_lives(self.env), self._lives
        self._lives = lives
        if lives < before and not (terminated or truncated):
            observation, more, terminated, truncated, info = self.env.step(self._fire)
            reward += more  # type: ignore[operator]
        return observation, reward, terminated, truncated, info


class EpisodicLife(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode of training when a life is lost; the next episode continues the same game.

    Unlike `terminal_on_life_loss` of `AtariPreprocessing`, a lost life does not restart the game, so training sees all
    of it. In the settings, the wrapper belongs under `training_wrappers`, so that evaluation plays complete games.
    Games without lives are unchanged.

    A reset that continues a game does not touch it: the first observation is the last one of the episode before, and
    options are not used. A reset with a seed always starts a new game.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.continued = False
        """Whether the newest reset continued a game."""
        self._lives = 0
        self._lost_life = False
        self._observation: Any = None
        count_lives(env)  # refuses an environment that is no Atari game

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Continues the game after a lost life, or starts a new one."""
        self.continued = self._lost_life and seed is None
        self._lost_life = False
        if self.continued:
            return self._observation, {}
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._lives = count_lives(self.env)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps, and ends the episode if a life was lost."""
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        lives = count_lives(self.env)
        # Some games show no lives for a few frames before they end.
        self._lost_life = 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        return self._observation, reward, terminated or self._lost_life, truncated, info

    def start_over(self) -> None:
        """Makes the next reset start a new game."""
        self._lost_life = False


def count_lives(env: gym.Env[Any, Any]) -> int:
    """Returns the lives that are left in an Atari game; 0 in a game without lives."""
    game: Any = env.unwrapped
    return int(game.ale.lives())
