"""Restores an environment to the middle of an episode by playing the episode again.

A snapshot holds the seed or random state before the episode's reset, the options of the reset, and the actions since.
An episode that continues the game of the one before (`EpisodicLife`) is replayed from the start of the game.
Pickling the environment instead is silently wrong for MuJoCo and fails for Box2D; replay is exact for both. Comparing
the end of the replay with the snapshot reveals environments that are not deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.episodes.raw_return import find_raw_return
from rl_training.envs.random_state import random_state, random_state_to_json, write_random_state
from rl_training.envs.space_leaves import list_leaves
from rl_training.envs.wrappers.atari_lives import find_episodic_life
from rl_training.errors import EnvironmentFault


class EpisodeReplay(gym.Wrapper[Any, Any, Any, Any]):
    """Records the running episode so that it can be played again in another process.

    This wrapper belongs outside everything that is part of the environment, such as time limits and frame stacks.
    Wrappers whose state outlives an episode belong outside this one, because a replay would feed them twice.

    Args:
        env: An environment whose rewards are floats, which `ContractGuard` ensures.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.last_observation: Any = None
        """The observation that the latest `reset` or `step` returned."""
        self.episode_return = 0.0
        """Sum of the running episode's rewards."""
        self.episode_length = 0
        """Number of steps in the running episode."""
        self._lives = find_episodic_life(env)
        self._earlier = 0
        """Number of actions in the game before the running episode."""
        self._continued: list[int] = []
        """The number of actions in the game before each episode that continued it."""
        self._raw = find_raw_return(env)
        self._raw_before = 0.0
        """Raw return of the game before the running episode."""
        self._seed: int | None = None
        self._random_state: dict[str, Any] | None = None
        self._options = "null"
        self._actions = _make_action_array(env.action_space, 64)

    @property
    def raw_return(self) -> float | None:
        """Sum of the running episode's rewards beneath all wrappers; None for an environment without wrappers."""
        return None if self._raw is None else self._raw.raw_return - self._raw_before

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and begins to record a new episode."""
        before = None if seed is not None else random_state(self.env)
        self.last_observation, info = self.env.reset(seed=seed, options=options)
        if self._lives is not None and self._lives.continued:
            self._earlier += self.episode_length
            self._continued.append(self._earlier)
            self._raw_before = self._raw.raw_return if self._raw is not None else 0.0
        else:
            self._seed = self._seed if seed is None else int(seed)
            self._random_state, self._options = before, json.dumps(options)
            self._earlier, self._continued, self._raw_before = 0, [], 0.0
        self.episode_return, self.episode_length = 0.0, 0
        return self.last_observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Records the action, before the environment can change it, and steps."""
        index = self._earlier + self.episode_length
        if index == len(self._actions):
            self._actions = np.concatenate((self._actions, np.zeros_like(self._actions)))
        self._actions[index] = action
        self.episode_length += 1
        result = self.env.step(action)
        self.last_observation = result[0]
        self.episode_return += result[1]  # type: ignore[operator]
        return result

    def snapshot(self) -> dict[str, Any]:
        """Returns the state that `restore` takes: numbers, strings and arrays."""
        continued = {} if self._lives is None else {"continued": list(self._continued)}
        return {
            "seed": self._seed,
            "random_state_before_reset": random_state_to_json(self._random_state),
            "options": self._options,
            "actions": self._actions[: self._earlier + self.episode_length].copy(),
            **continued,
            "life_steps": self._life_steps,
            **self._end_state(),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> bool:
        """Plays the episode of a snapshot again and compares its end with the saved one.

        Returns:
            True if observation, return, length and random state equal the saved ones. Otherwise False: the environment
            is not deterministic, and is now at the start of a fresh episode, drawn from the saved random state.

        Raises:
            EnvironmentFault: The fresh episode failed as well.
        """
        try:
            exact = self._play_again(snapshot)
        except EnvironmentFault:
            exact = False
        if not exact:
            if snapshot["random_state"] is not None:
                write_random_state(self.env, snapshot["random_state"])
            if self._lives is not None:
                self._lives.start_over()
            self.reset()
        self._life_steps = int(snapshot["life_steps"])
        return exact

    def _play_again(self, snapshot: Mapping[str, Any]) -> bool:
        options = json.loads(snapshot["options"])
        before = snapshot["random_state_before_reset"]
        if before is None:
            self.reset(seed=snapshot["seed"], options=options)
        else:
            # The seed comes first, for state that an environment makes once, when it is first seeded, and keeps.
            self.reset(seed=snapshot["seed"])
            write_random_state(self.env, before)
            self.reset(options=options)
        self._seed = snapshot["seed"]
        continued = [int(index) for index in snapshot.get("continued", ())]
        over = False
        for index, action in enumerate(_cast_actions(self.action_space, np.asarray(snapshot["actions"]))):
            if over and index in continued:
                self.reset(options={})
            elif over:
                return False
            _, _, terminated, truncated, _ = self.step(action)
            over = terminated or truncated
        if over and len(snapshot["actions"]) in continued:
            self.reset(options={})
        return self._continued == continued and _is_same_state(self._end_state(), snapshot)

    def _end_state(self) -> dict[str, Any]:
        observation = [np.asarray(leaf.pick(self.last_observation)) for leaf in list_leaves(self.observation_space)]
        return {
            "observation": observation,
            "episode_return": self.episode_return,
            "episode_length": self.episode_length,
            "random_state": random_state_to_json(random_state(self.env)),
        }

    @property
    def _life_steps(self) -> int:
        return int(self.get_wrapper_attr("life_steps")) if self.has_wrapper_attr("life_steps") else 0

    @_life_steps.setter
    def _life_steps(self, steps: int) -> None:
        if self.has_wrapper_attr("life_steps"):
            self.set_wrapper_attr("life_steps", steps)


def _make_action_array(space: gym.Space[Any], capacity: int) -> NDArray[Any]:
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.zeros((capacity, *(space.shape or ())), space.dtype)
    return np.zeros(capacity, object)


def _cast_actions(space: gym.Space[Any], actions: NDArray[Any]) -> NDArray[Any]:
    return actions.astype(space.dtype) if actions.dtype != object else actions


def _is_same_state(state: Mapping[str, Any], snapshot: Mapping[str, Any]) -> bool:
    if any(state[key] != snapshot[key] for key in ("episode_return", "episode_length", "random_state")):
        return False
    pairs = zip(state["observation"], snapshot["observation"], strict=True)
    return all(np.array_equal(np.asarray(here), np.asarray(saved)) for here, saved in pairs)
