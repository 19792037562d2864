"""Plays an environment with random actions and checks everything that it returns.

A twin is stepped with the same seed and actions; if the two differ, the environment is not deterministic.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.config.action_mask import MASK_KEY
from rl_training.envs.contract.call_watch import CallBlocked, CallWatch
from rl_training.envs.contract.mask_guard import sample_action
from rl_training.envs.contract.observation_contract import check_observation, observation_is_array
from rl_training.envs.contract.step_contract import (
    Breach,
    check_flag,
    check_reset_result,
    check_reward,
    check_space_change,
    check_step_result,
    failure,
)
from rl_training.envs.space_leaves import Leaf, list_leaves
from rl_training.envs.validation.report import Findings
from rl_training.envs.validation.step_speed import Stopwatch
from rl_training.errors import USER_CODE_ERRORS


class Player:
    """Plays an environment and its twin in lockstep."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        twin: gym.Env[Any, Any],
        seed: int,
        found: Findings,
        watch: CallWatch,
        options: Mapping[str, Any],
    ) -> None:
        self._env = env
        self._twin: gym.Env[Any, Any] | None = twin
        self._seed = seed
        self._options = dict(options)
        self._found = found
        self._watch = watch
        self._observation_space, self._action_space = env.observation_space, deepcopy(env.action_space)
        self._action_space.seed(seed)
        self._corners = _list_corner_actions(self._action_space)
        self._last: list[tuple[Any, Any]] = []
        self._global_draws = Counter[str]()
        self.steps = 0
        """Number of steps played since the environment was made."""
        self.last_infos: list[Mapping[str, Any]] = []
        """The info of the last step of each complete episode."""
        self.gives_mask = False
        """Whether an info had an action mask."""
        self.stopwatch = Stopwatch()
        """Times the environment's `step`, except for the first one."""

    def play_episode(self, number: int, max_steps: int) -> bool | None:
        """Plays the episode `number` (from 0), of at most `max_steps` steps.

        Returns:
            Whether the episode ended; None if the environment failed and play can't continue.
        """
        seed = self._seed if number == 0 else None
        result = self._call("reset", lambda: self._env.reset(seed=seed, options=deepcopy(self._options) or None))
        if result is None or not self._is_well_formed(check_reset_result(result), "reset"):
            return None
        self._look_at_observation(result[0], "reset")
        self.gives_mask |= MASK_KEY in result[1]
        self._compare("reset", result[:1], lambda twin: twin.reset(seed=seed, options=deepcopy(self._options) or None))
        self._look_at_spaces()
        for _ in range(max_steps):
            over = self._step()
            if over is not False:
                self._look_at_spaces()
                return over
        return False

    def _step(self) -> bool | None:
        action = self._corners.pop() if self._corners else sample_action(self._env, self._action_space)
        given = deepcopy(action)
        self.steps += 1
        if self.steps == 2:  # The first step may import or compile.
            self.stopwatch = Stopwatch()
        result = self._call("step", lambda: self.stopwatch.step(self._env, given), f" on the action {action}")
        if result is None or not self._is_well_formed(check_step_result(result), "step"):
            return None
        observation, reward, terminated, truncated, info = result
        self.gives_mask |= MASK_KEY in info
        self._look_at_observation(observation, "step")
        flags = [*check_flag("terminated", terminated), *check_flag("truncated", truncated)]
        self._add([*check_reward(reward), *flags], "step")
        if not _is_same(given, action):
            self._add(
                [Breach("warning", "action-changed", f"changed the action {action} in place; it gets a copy")], "step"
            )
        self._compare("step", result[:4], lambda twin: twin.step(deepcopy(action)))
        over = bool(terminated) or bool(truncated)
        if over:
            self.last_infos.append(dict(info))
        return None if flags else over

    def _call(self, during: str, function: Callable[[], Any], detail: str = "") -> Any:
        before = _take_global_state()
        try:
            return self._watch.call(self._describe_call(during), function)
        except USER_CODE_ERRORS as error:
            self._add([failure(during, error, detail)])
            return None
        finally:
            after = _take_global_state()
            self._global_draws.update(name for name, state in before.items() if state != after[name])

    def _is_well_formed(self, breaches: list[Breach], during: str) -> bool:
        self._add(breaches)
        return not breaches

    def _look_at_observation(self, observation: Any, during: str) -> None:
        self._add(check_observation(self._observation_space, observation), during)
        for kept, as_it_was in self._last:
            if not _is_same(kept, as_it_was):
                message = "returned the same array as before and changed it in place; it is copied"
                self._add([Breach("warning", "array-reused", message)], during)
                break
        arrays = [part for part in _pick_leaves(self._observation_space, observation) if isinstance(part, np.ndarray)]
        self._last = [(array, array.copy()) for array in arrays]

    def _look_at_spaces(self) -> None:
        self._add(check_space_change("observation_space", self._observation_space, self._env.observation_space))
        self._add(check_space_change("action_space", self._action_space, self._env.action_space))

    def _compare(self, during: str, result: tuple[Any, ...], call: Callable[[gym.Env[Any, Any]], Any]) -> None:
        if self._twin is None:
            return
        try:
            twin = self._twin
            other = self._watch.call(f"{self._describe_call(during)} of a second instance", lambda: call(twin))
            difference = _find_difference(self._observation_space, result, other[: len(result)])
        except CallBlocked as error:
            self._twin = None
            self._add([failure(f"{during} of a second instance", error)])
            return
        except USER_CODE_ERRORS as error:
            difference = failure(during, error)
        if difference is not None:
            self._twin = None
            drawn = " and ".join(sorted(self._global_draws))
            cause = f" (it draws from the global generator of {drawn}; use self.np_random)" if drawn else ""
            message = (
                f"not deterministic: with the same seed and actions, a second environment gave another {during}: "
                f"{difference.message}{cause}; a resume can't continue such an episode and begins a fresh one"
            )
            self._add([Breach("warning", "not-deterministic", message, difference.feature, difference.value)])

    def check_global_generators(self) -> list[Breach]:
        """Returns a warning if global generators were used although no difference to the twin has shown it.

        A single draw does not count: it may be that of another thread, such as a client's of the Prefect server.
        """
        drawn = " and ".join(sorted(name for name, calls in self._global_draws.items() if calls > 1))
        if self._twin is None or not drawn:
            return []
        message = (
            f"it uses the global generator of {drawn}, which other code shares and no seed of an environment controls, "
            f"so a resume may not be exact; draw from self.np_random"
        )
        return [Breach("warning", "global-generator", message)]

    def _describe_call(self, during: str) -> str:
        if during == "step":
            return f"step {self.steps}"
        return f"the reset after step {self.steps}" if self.steps else "the first reset"

    def _add(self, breaches: list[Breach], during: str = "") -> None:
        self._found.add(breaches, step=self.steps, during=during)


def _take_global_state() -> dict[str, Any]:
    """Returns the states of the generators that all code of a process shares, in a form that can be compared."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return {"numpy": (np.asarray(keys).tobytes(), *rest), "random": random.getstate()}


def _list_corner_actions(space: gym.Space[Any]) -> list[Any]:
    """Returns the bounds of a `Box`, which clipped actions reach and which an environment may refuse."""
    if not isinstance(space, spaces.Box):
        return []
    return [bound.copy() for bound in (space.low, space.high) if np.isfinite(bound).all()]


def _pick_leaves(space: gym.Space[Any], observation: Any) -> list[Any]:
    try:
        return [leaf.pick(observation) for leaf in list_leaves(space)]
    except (KeyError, IndexError, TypeError):
        return []


def _find_difference(space: gym.Space[Any], result: tuple[Any, ...], other: tuple[Any, ...]) -> Breach | None:
    """Returns the first difference of two results of `reset` (observation) or `step` (with reward and flags)."""
    for leaf, here, there in zip(
        list_leaves(space), _pick_leaves(space, result[0]), _pick_leaves(space, other[0]), strict=False
    ):
        if observation_is_array(here) and observation_is_array(there):
            breach = _find_array_difference(leaf, np.asarray(here), np.asarray(there))
            if breach is not None:
                return breach
    for name, here, there in zip(("reward", "terminated", "truncated"), result[1:], other[1:], strict=False):
        if not _is_same(here, there):
            return Breach("warning", "", f"{name} {here} and {there}", value=str(there))
    return None


def _is_same(here: Any, there: Any) -> bool:
    """Returns whether two values, possibly nested, are equal in every part; NaN equals NaN."""
    if isinstance(here, Mapping):
        return (
            isinstance(there, Mapping)
            and here.keys() == there.keys()
            and all(_is_same(here[k], there[k]) for k in here)
        )
    if isinstance(here, tuple):
        return isinstance(there, tuple) and len(here) == len(there) and all(map(_is_same, here, there))
    return np.array_equal(here, there, equal_nan=_is_float(here) and _is_float(there))


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or getattr(getattr(value, "dtype", None), "kind", "") == "f"


def _find_array_difference(leaf: Leaf, here: Any, there: Any) -> Breach | None:
    if here.shape != there.shape:
        return Breach("warning", "", f"observation shapes {here.shape} and {there.shape}")
    unequal = (here != there) & ~((here != here) & (there != there))
    if not unequal.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), unequal.shape))
    feature = leaf.feature(index)
    message = f"observation feature {feature} was {here[index]} and {there[index]}"
    return Breach("warning", "", message, feature, str(there[index]))
