"""The border around one environment: what passes it fits the declared spaces, and what goes wrong is named."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.observation_contract import as_declared
from rl_training.envs.contract.step_contract import (
    ContractBroken,
    flag_as_bool,
    raise_if_broken,
    raised,
    reset_result_breaches,
    reward_as_float,
    space_change_breaches,
    space_type_breaches,
    step_result_breaches,
)
from rl_training.envs.plain_spaces import plain_space
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, EnvironmentRefused
from rl_training.security.secrets import hide, secret_values
from rl_training.system.signal_handlers import check_handlers


def fault_text(env_id: str, env_index: int, life_step: int, what: str) -> str:
    """Returns the words of every fault in mid-run: which environment, at which of its steps, what."""
    return f"environment {env_id} (index {env_index}) at its step {life_step}: {what}"


class RaisedByEnvironment(Exception):
    """What an environment raised, as a traceback in text, where the exception itself can't be shown."""


def secrets_of(config: TrainConfig) -> frozenset[str]:
    """Returns the secrets that a run's environments are given, which their errors may repeat."""
    return secret_values({"env_kwargs": config.env_kwargs, "wrappers": [wrapper.kwargs for wrapper in config.wrappers]})


def shown_cause(error: BaseException, secrets: Collection[str]) -> BaseException | None:
    """Returns an error as a fault's cause, fit to be shown with its traceback.

    A broken promise was found here, and has no frame of the environment's. Where the traceback's text has one of the
    secrets, text without it stands for the error.
    """
    if isinstance(error, ContractBroken):
        return None
    frames = "".join(traceback.format_exception(error))
    hidden = hide(frames, secrets)
    return error if hidden == frames else RaisedByEnvironment(f"\n{hidden.rstrip()}")


@contextmanager
def warnings_hidden(secrets: Collection[str]) -> Iterator[None]:
    """Hides secrets in what is warned of within the block, by Gymnasium as well, before anybody shows it.

    Python's warnings are one per process, so threads that make environments at the same time share what is hidden.
    """
    if not secrets:
        yield
        return
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            yield
    finally:
        for each in caught:
            text = hide(str(each.message), secrets)
            warnings.warn_explicit(text, each.category, each.filename, each.lineno)


class ContractGuard(gym.Wrapper[Any, Any, Any, Any]):
    """Casts observations to the declared dtype once, copies them, and turns every fault into an `EnvironmentFault`.

    Its own spaces are the environment's in plain dtypes (`plain_space`), and observations come in these; actions reach
    the environment in the dtype that it declares. Rewards pass as floats. An exception of the environment, `sys.exit`
    in it, and a broken promise carry the environment's id, its index and its step (counted for this environment since
    the run began), and no secret.

    Args:
        env: The environment in its own wrappers.
        env_id: The id in the settings, for messages.
        env_index: Which of the run's environments this is.
        secrets: What the environment was given and its errors must not show.

    Raises:
        EnvironmentRefused: One of its spaces is no space.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: str, env_index: int, secrets: Collection[str] = ()) -> None:
        super().__init__(env)
        for name in ("observation_space", "action_space"):
            for breach in space_type_breaches(name, getattr(env, name, None)):
                raise EnvironmentRefused(f"environment {env_id!r}: {breach.message}")
        self._env_id = env_id
        self._env_index = env_index
        self._secrets = secrets
        self._declared = env.observation_space, env.action_space
        self._space = self.observation_space = plain_space(env.observation_space)
        self.action_space = plain_space(env.action_space)
        self._action_dtype = None if self.action_space is env.action_space else env.action_space.dtype
        # Of the usual observation, which is judged at a glance; those of other spaces are no such arrays.
        self._shape = self._space.shape if isinstance(self._space, spaces.Box) else None
        self._dtype = self._space.dtype
        self.life_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment.

        Raises:
            EnvironmentFault: It raised, exited, or broke its contract.
        """
        try:
            with warnings_hidden(self._secrets):
                result = self.env.reset(seed=seed, options=options)
            check_handlers()
            raise_if_broken(reset_result_breaches(result))
            observations, actions = self._declared
            raise_if_broken(space_change_breaches("observation_space", observations, self.env.observation_space))
            raise_if_broken(space_change_breaches("action_space", actions, self.env.action_space))
            return self._as_declared(result[0]), result[1]
        except USER_CODE_ERRORS as error:
            raise self._fault("reset", error) from shown_cause(error, self._secrets)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the environment.

        Raises:
            EnvironmentFault: It raised, exited, or broke its contract.
        """
        self.life_steps += 1
        try:
            if self._action_dtype is not None:
                action = np.asarray(action).astype(self._action_dtype)[()]
            result = self._step_hiding(action) if self._secrets else self.env.step(action)
            if type(result) is not tuple or len(result) != 5 or type(result[4]) is not dict:
                raise_if_broken(step_result_breaches(result))
            observation, reward, terminated, truncated, info = result
            observation = self._as_declared(observation)
            if type(reward) is not float:
                reward = reward_as_float(reward)
            if terminated is not False:
                terminated = flag_as_bool("terminated", terminated)
            if truncated is not False:
                truncated = flag_as_bool("truncated", truncated)
            return observation, reward, terminated, truncated, info
        except USER_CODE_ERRORS as error:
            raise self._fault("step", error) from shown_cause(error, self._secrets)

    def _step_hiding(self, action: Any) -> Any:
        with warnings_hidden(self._secrets):
            return self.env.step(action)

    def _as_declared(self, observation: Any) -> Any:
        """Returns a copy, since an environment may hand out the same array each time and change it in place."""
        if type(observation) is np.ndarray and observation.shape == self._shape and observation.dtype == self._dtype:
            return observation.copy()
        return as_declared(self._space, observation)

    def _fault(self, during: str, error: BaseException) -> EnvironmentFault:
        what = f"{during}: {error}" if isinstance(error, ContractBroken) else raised(during, error)
        return EnvironmentFault(fault_text(self._env_id, self._env_index, self.life_steps, hide(what, self._secrets)))
