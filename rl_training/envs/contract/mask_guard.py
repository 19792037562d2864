"""Takes action masks from an environment, checks each of them, and draws random actions that they allow.

Shapes: M actions: n of a `Discrete` space, or the choices of all parts of a `MultiDiscrete` one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.config.action_mask import MASK_KEY
from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.step_contract import (
    Breach,
    ContractBroken,
    check_reset_result,
    check_space_change,
    check_space_type,
    check_step_result,
    describe,
    raise_if_broken,
)
from rl_training.envs.spaces.action_codec import ActionCodec
from rl_training.envs.spaces.action_mask import describe_mask_form, draw_allowed, find_mask_faults, split_parts
from rl_training.errors import EnvironmentRefused

OBSERVATION = "observation"
"""The key of an observation that is no `Dict`, beside the mask from an info."""


class MaskGuard(gym.Wrapper[Any, Any, Any, Any]):
    """Checks the mask of each observation; masks from infos become a part of the observation.

    A mask has a 0 or 1 for each action. It is an array of n for `Discrete(n)` actions. For `MultiDiscrete` ones it is
    an array of the choices of all parts, or a tuple with an array for each part, as Gymnasium's `sample` takes it. It
    must allow an action in each observation, except in one of a terminal state, in which no action is chosen.

    Args:
        env: The environment in the wrappers of the settings.
        config: Settings with a mask.

    Raises:
        EnvironmentRefused: The actions can't be masked, or the observation space has no such mask.
    """

    def __init__(self, env: gym.Env[Any, Any], config: TrainConfig) -> None:
        super().__init__(env)
        for name in ("observation_space", "action_space"):
            for breach in check_space_type(name, getattr(env, name, None)):
                raise EnvironmentRefused(f"environment {config.env_id!r}: {breach.message}")
        assert config.mask_key is not None
        self._key, self._in_infos = config.mask_key, config.masks_in_infos
        self._inner_space = env.observation_space
        self._counts = ActionCodec(env.action_space).nvec
        if self._in_infos and self._counts:
            self.observation_space = _add_mask(env.observation_space, sum(self._counts))
        for sentence in find_mask_faults(self.observation_space, env.action_space, self._key):
            raise EnvironmentRefused(sentence)
        self._mask_M = np.ones(sum(self._counts), np.int8)
        self._starts = np.cumsum((0, *self._counts[:-1]))  # where each part of an action begins

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment.

        Raises:
            ContractBroken: The result is not well-formed, or its mask is missing, malformed, or allows no action.
        """
        result = self.env.reset(seed=seed, options=options)
        raise_if_broken(check_reset_result(result))
        raise_if_broken(check_space_change("observation_space", self._inner_space, self.env.observation_space))
        observation, info = result
        return self._take_mask(observation, info, is_terminal=False), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environment.

        Raises:
            ContractBroken: As `reset`.
        """
        result = self.env.step(action)
        raise_if_broken(check_step_result(result))
        observation, reward, terminated, truncated, info = result
        return self._take_mask(observation, info, is_terminal=bool(terminated)), reward, terminated, truncated, info

    def sample_allowed(self, rng: np.random.Generator) -> Any:
        """Draws an action that the mask of the newest observation allows, each with the same probability."""
        return self._draw([part == 1 for part in split_parts(self._mask_M, self._counts)], rng)

    def sample_forbidden(self, rng: np.random.Generator) -> Any | None:
        """Draws an action with a choice that the mask of the newest observation forbids; None if it forbids none."""
        parts = [part == 1 for part in split_parts(self._mask_M, self._counts)]
        forbidden = [not part.all() for part in parts]
        if not any(forbidden):
            return None
        a = forbidden.index(True)
        return self._draw([~part if i == a else part for i, part in enumerate(parts)], rng)

    def _draw(self, parts: list[NDArray[np.bool_]], rng: np.random.Generator) -> Any:
        space = self.env.action_space
        choices = np.array([draw_allowed(part[None], rng)[0] for part in parts])
        action = (choices.reshape(space.shape or ()) + getattr(space, "start", 0)).astype(space.dtype)
        return action[()]

    def _take_mask(self, observation: Any, info: Mapping[str, Any], *, is_terminal: bool) -> Any:
        """Returns the observation with its mask."""
        if self._in_infos:
            if MASK_KEY not in info:
                known = ", ".join(sorted(map(str, info))) or "none"
                _refuse(f"info has no {MASK_KEY!r} (keys: {known}); give it in each reset and step, or leave the "
                        f"setting action_mask out")  # fmt: skip
            given = info[MASK_KEY]
        elif isinstance(observation, Mapping) and self._key in observation:
            given = observation[self._key]
        else:
            return observation  # which breaks the contract of observations, whose check describes it better
        self._mask_M = _flatten_mask(given, self._counts)
        if not is_terminal:
            self._require_choice()
        if not self._in_infos:
            return observation
        if isinstance(self._inner_space, spaces.Dict):
            return {**observation, MASK_KEY: self._mask_M.copy()}
        return {OBSERVATION: observation, MASK_KEY: self._mask_M.copy()}

    def _require_choice(self) -> None:
        largest = np.maximum.reduceat(self._mask_M, self._starts)  # of each part
        if np.count_nonzero(largest) < len(largest):
            which = "no action" if len(largest) == 1 else f"no choice in part {largest.argmin()} of the action"
            _refuse(f"the action mask allows {which}; expected at least one in each state that is not terminal")


def sample_action(env: gym.Env[Any, Any], space: gym.Space[Any]) -> Any:
    """Draws a random action, if the environment is a `MaskGuard` one that the mask of its newest observation allows.

    Args:
        env: The environment.
        space: Its action space, whose generator draws.
    """
    return env.sample_allowed(space.np_random) if isinstance(env, MaskGuard) else space.sample()


def _add_mask(space: gym.Space[Any], size: int) -> spaces.Dict:
    """Returns the space of observations with a mask that comes from infos."""
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    if MASK_KEY in parts:
        raise EnvironmentRefused(
            f"action_mask: got info, and observations have an {MASK_KEY} of their own; set action_mask: {MASK_KEY}"
        )
    return spaces.Dict({**parts, MASK_KEY: spaces.MultiBinary(size)})


def _flatten_mask(given: Any, counts: tuple[int, ...]) -> NDArray[np.int8]:
    """Returns a mask as one array [M].

    Raises:
        ContractBroken: It has another shape, or other values than 0 and 1.
    """
    in_parts = isinstance(given, tuple | list) and len(given) == len(counts) > 1
    try:
        parts = [np.asarray(part) for part in (given if in_parts else [given])]
    except ValueError:  # lists of unequal length
        _refuse(f"the action mask is {describe(given)} of unequal parts; expected {describe_mask_form(counts)}")
    shapes = [part.shape for part in parts]
    if shapes != ([(n,) for n in counts] if in_parts else [(sum(counts),)]):
        got = ", ".join(map(str, shapes))
        _refuse(f"the action mask has shape {got}; expected {describe_mask_form(counts)}")
    mask_M = np.concatenate(parts)
    if mask_M.dtype.kind not in "biuf" or np.count_nonzero(mask_M) != np.count_nonzero(mask_M == 1):
        wrong = next((value for value in mask_M.tolist() if value not in (0, 1)), mask_M.dtype)
        _refuse(f"the action mask has {wrong}; expected 0 (forbidden) or 1 (allowed) for each action")
    return mask_M.astype(np.int8)


def _refuse(message: str) -> NoReturn:
    raise ContractBroken(Breach("fatal", "action-mask", message))
