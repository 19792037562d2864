"""Restores an environment to the middle of an episode by playing the episode again.

A snapshot holds the seed or random state before the episode's reset, the options of the reset, and the actions since,
with the attributes that were set on the environment between them.
An episode that continues the game of the one before (`EpisodicLife`) is replayed from the start of the game.
Pickling the environment instead is silently wrong for MuJoCo and fails for Box2D; replay is exact for both. Comparing
the end of the replay with the snapshot reveals environments that are not deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.episodes.attribute_changes import AttributeChanges
from rl_training.envs.episodes.raw_return import RawReturn
from rl_training.envs.random_state import random_state, random_state_to_json, write_random_state
from rl_training.envs.space_leaves import list_leaves
from rl_training.envs.wrappers.atari_lives import EpisodicLife
from rl_training.envs.wrappers.lookup import find_wrapper
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.state_checks import validate


class EpisodeReplay(gym.Wrapper[Any, Any, Any, Any]):
    """Records the running episode so that it can be played again in another process.

    This wrapper belongs outside everything that is part of the environment, such as time limits and frame stacks.
    Wrappers whose state outlives an episode belong outside this one, because a replay would feed them twice.

    Args:
        env: An environment in `ContractGuard`, which ensures that rewards are floats.
        env_id: The id in the settings, for messages.
        reset_options: Options of each `reset`, beneath those that it is given.
    """

    def __init__(
        self, env: gym.Wrapper[Any, Any, Any, Any], env_id: str = "", reset_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(env)
        self._reset_options, self._options_changed = dict(reset_options or {}), False
        self.attributes = AttributeChanges(env.env, env_id)
        """The attributes of the environment beneath `ContractGuard`."""
        self.last_observation: Any = None
        """The observation that the latest `reset` or `step` returned."""
        self.episode_return = 0.0
        """Sum of the running episode's rewards."""
        self.episode_length = 0
        """Number of steps in the running episode."""
        self._lives = find_wrapper(env, EpisodicLife)
        self._earlier = 0
        """Number of actions in the game before the running episode."""
        self._continued: list[int] = []
        """The number of actions in the game before each episode that continued it."""
        self._raw = find_wrapper(env, RawReturn)
        self._raw_before = 0.0
        """Raw return of the game before the running episode."""
        self._seed: int | None = None
        self._random_state: dict[str, Any] | None = None
        self._options = self._seeded_options = "null"
        self._actions = _make_action_array(env.action_space, 64)

    @property
    def raw_return(self) -> float | None:
        """Sum of the running episode's rewards beneath all wrappers; None for an environment without wrappers."""
        return None if self._raw is None else self._raw.raw_return - self._raw_before

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment, with the reset options, and begins to record a new episode."""
        if self._reset_options:
            options = {**deepcopy(self._reset_options), **(options or {})}
        return self._reset(seed, options)

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Sets the options of every later `reset`, in place of those in use.

        Args:
            options: Data that JSON can hold.
        """
        self._reset_options, self._options_changed = json.loads(json.dumps(options)), True

    def set_attribute(self, name: str, value: Any) -> bool:
        """Sets an attribute of the environment; see `AttributeChanges.set`."""
        return self.attributes.set(name, value, self._earlier + self.episode_length)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        text = json.dumps(options)
        before = None if seed is not None else random_state(self.env)
        self.last_observation, info = self.env.reset(seed=seed, options=options)
        if self._lives is not None and self._lives.continued:
            self._earlier += self.episode_length
            self._continued.append(self._earlier)
            self._raw_before = self._raw.raw_return if self._raw is not None else 0.0
        else:
            self._seed = self._seed if seed is None else int(seed)
            self._seeded_options = self._seeded_options if seed is None else text
            self._random_state, self._options = before, text
            self.attributes.begin(seeded=seed is not None)
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
            **self._changed_state(),
            "life_steps": self._life_steps,
            **self._end_state(),
        }

    def _changed_state(self) -> dict[str, Any]:
        """Returns the parts of a snapshot for options and attributes that were set; empty for most environments."""
        state: dict[str, Any] = {}
        if attributes := self.attributes.state_dict():
            state["attributes"] = attributes
        if self._seeded_options != "null":
            state["seeded_options"] = self._seeded_options
        if self._options_changed:
            state["reset_options"] = json.dumps(self._reset_options)
        return state

    def restore(self, snapshot: Mapping[str, Any]) -> bool:
        """Plays the episode of a snapshot again and compares its end with the saved one.

        Returns:
            True if observation, return, length and random state equal the saved ones. Otherwise False: the environment
            is not deterministic, and is now at the start of a fresh episode, drawn from the saved random state.

        Raises:
            CheckpointError: The reset options are no mapping.
            EnvironmentFault: The fresh episode failed as well.
        """
        if "reset_options" in snapshot:
            self.set_reset_options(validate("reset_options", json.loads(snapshot["reset_options"]), dict[str, Any]))
        try:
            exact = self._play_again(snapshot)
        except (EnvironmentFault, EnvironmentRefused):
            exact = False
        if not exact:
            self.attributes.apply(snapshot.get("attributes", {}).get("now", {}))
            if snapshot["random_state"] is not None:
                write_random_state(self.env, snapshot["random_state"])
            if self._lives is not None:
                self._lives.start_over()
            self.reset()
        self._life_steps = int(snapshot["life_steps"])
        return exact

    def replay(self, snapshot: Mapping[str, Any], actions: Sequence[Any]) -> bool:
        """Plays the episode of a snapshot again, and the actions after it, even beyond the end of the episode.

        Returns:
            False if the replay differs from the snapshot, as in `restore`, or if an action failed. The caller compares
            the newest observation.
        """
        exact = self.restore(snapshot)
        try:
            for action in actions if exact else ():
                self.step(action)
        except EnvironmentFault:
            exact = False
        self._life_steps = int(snapshot["life_steps"]) + len(actions)
        return exact

    def _play_again(self, snapshot: Mapping[str, Any]) -> bool:
        options = json.loads(snapshot["options"])
        before = snapshot["random_state_before_reset"]
        attributes = snapshot.get("attributes", {"seeded": {}, "begun": {}, "during": []})
        self.attributes.apply(attributes["seeded"])
        if before is None:
            self._reset(snapshot["seed"], options)
        else:
            # The seed comes first, for state that an environment makes once, when it is first seeded, and keeps.
            self._reset(snapshot["seed"], json.loads(snapshot.get("seeded_options", "null")))
            self.attributes.apply(attributes["begun"])
            write_random_state(self.env, before)
            self._reset(None, options)
        self._seed = snapshot["seed"]
        return self._repeat(snapshot, attributes["during"])

    def _repeat(self, snapshot: Mapping[str, Any], changes: Sequence[Any]) -> bool:
        """Repeats the actions of a snapshot and the `changes` of attributes between them; see `restore`."""
        continued = [int(index) for index in snapshot.get("continued", ())]
        due: dict[int, list[tuple[str, Any]]] = {}
        for index, name, value in changes:
            due.setdefault(index, []).append((name, value))
        over = False
        for index, action in enumerate(_cast_actions(self.action_space, np.asarray(snapshot["actions"]))):
            if over and index in continued:
                self._reset(None, {})
            elif over:
                return False
            self._set_again(due.get(index, ()), index)
            _, _, terminated, truncated, _ = self.step(action)
            over = terminated or truncated
        if over and len(snapshot["actions"]) in continued:
            self._reset(None, {})
        self._set_again(due.get(len(snapshot["actions"]), ()), len(snapshot["actions"]))
        return self._continued == continued and _is_same_state(self._end_state(), snapshot)

    def _set_again(self, changes: Iterable[tuple[str, Any]], index: int) -> None:
        for name, value in changes:
            self.attributes.apply({name: value}, index)

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
