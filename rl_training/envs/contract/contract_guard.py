"""Guards one environment: values are made to fit the declared spaces, and every fault names the environment."""

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
from rl_training.envs.contract.observation_contract import cast_to_space
from rl_training.envs.contract.step_contract import (
    ContractBroken,
    check_reset_result,
    check_space_change,
    check_space_type,
    check_step_result,
    describe_error,
    flag_as_bool,
    raise_if_broken,
    reward_as_float,
)
from rl_training.envs.plain_spaces import make_plain_space
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, EnvironmentRefused
from rl_training.security.secrets import collect_secret_values, hide
from rl_training.system.signal_handlers import check_handlers


def format_fault(env_id: str, env_index: int, life_step: int, what: str) -> str:
    """Returns the message of a fault during a run: the environment, its step, and the fault."""
    return f"environment {env_id} (index {env_index}) at its step {life_step}: {what}"


class RaisedByEnvironment(Exception):
    """Carries the text of a traceback in an environment, if the exception itself can't be shown."""


def find_secrets(config: TrainConfig) -> frozenset[str]:
    """Returns the secrets that the environments of a run are given, and which their errors may repeat."""
    evaluation = config.evaluation
    wrappers = (*config.wrappers, *config.training_wrappers, *(evaluation.wrappers or ()))
    kwargs = [config.env_kwargs, evaluation.env_kwargs or {}, *(wrapper.kwargs for wrapper in wrappers)]
    return collect_secret_values({"kwargs": kwargs})


def redact_cause(error: BaseException, secrets: Collection[str]) -> BaseException | None:
    """Returns an error as the cause of a fault, without secrets.

    If the text of the traceback holds a secret, an exception with the redacted text replaces the error. Returns None
    for a breach of contract, which is detected here, so that its traceback has no frame of the environment.
    """
    if isinstance(error, ContractBroken):
        return None
    frames = "".join(traceback.format_exception(error))
    hidden = hide(frames, secrets)
    return error if hidden == frames else RaisedByEnvironment(f"\n{hidden.rstrip()}")


@contextmanager
def hide_secrets_in_warnings(secrets: Collection[str]) -> Iterator[None]:
    """Hides secrets in warnings within the block, including Gymnasium's, before they are shown.

    The state of Python's warnings is global, so threads that make environments at the same time share it.
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
    """Copies observations in the declared dtype, and turns every fault into an `EnvironmentFault`.

    The guard's spaces are the environment's with plain dtypes (`make_plain_space`), and observations have these dtypes;
    actions reach the environment in the dtype that it declares. Rewards are floats. A fault is an exception of the
    environment, a call of `sys.exit`, or a breach of contract; its message has the environment's id, index and step
    (counted since the run began), and no secret.

    Args:
        env: The environment in the wrappers of the settings.
        env_id: The id in the settings, for messages.
        env_index: Index of the environment within the run.
        secrets: Values that the environment was given and that its errors must not show.

    Raises:
        EnvironmentRefused: A space of the environment is not a Gymnasium space.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: str, env_index: int, secrets: Collection[str] = ()) -> None:
        super().__init__(env)
        for name in ("observation_space", "action_space"):
            for breach in check_space_type(name, getattr(env, name, None)):
                raise EnvironmentRefused(f"environment {env_id!r}: {breach.message}")
        self._env_id = env_id
        self._env_index = env_index
        self._secrets = secrets
        self._declared = env.observation_space, env.action_space
        self._space = self.observation_space = make_plain_space(env.observation_space)
        self.action_space = make_plain_space(env.action_space)
        self._action_dtype = None if self.action_space is env.action_space else env.action_space.dtype
        # Shape and dtype of the usual observation, one array, for a fast check in each step.
        self._shape = self._space.shape if isinstance(self._space, spaces.Box) else None
        self._dtype = self._space.dtype
        self.life_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment.

        Raises:
            EnvironmentFault: The environment raised, exited, or broke its contract.
        """
        try:
            with hide_secrets_in_warnings(self._secrets):
                result = self.env.reset(seed=seed, options=options)
            check_handlers()
            raise_if_broken(check_reset_result(result))
            observations, actions = self._declared
            raise_if_broken(check_space_change("observation_space", observations, self.env.observation_space))
            raise_if_broken(check_space_change("action_space", actions, self.env.action_space))
            return self._copy_observation(result[0]), result[1]
        except USER_CODE_ERRORS as error:
            raise self._fault("reset", error) from redact_cause(error, self._secrets)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the environment.

        Raises:
            EnvironmentFault: The environment raised, exited, or broke its contract.
        """
        self.life_steps += 1
        try:
            if self._action_dtype is not None:
                action = np.asarray(action).astype(self._action_dtype)[()]
            result = self._step_hiding(action) if self._secrets else self.env.step(action)
            if type(result) is not tuple or len(result) != 5 or type(result[4]) is not dict:
                raise_if_broken(check_step_result(result))
            observation, reward, terminated, truncated, info = result
            observation = self._copy_observation(observation)
            if type(reward) is not float:
                reward = reward_as_float(reward)
            if terminated is not False:
                terminated = flag_as_bool("terminated", terminated)
            if truncated is not False:
                truncated = flag_as_bool("truncated", truncated)
            return observation, reward, terminated, truncated, info
        except USER_CODE_ERRORS as error:
            raise self._fault("step", error) from redact_cause(error, self._secrets)

    def _step_hiding(self, action: Any) -> Any:
        with hide_secrets_in_warnings(self._secrets):
            return self.env.step(action)

    def _copy_observation(self, observation: Any) -> Any:
        """Returns a copy in the declared form, because an environment may change in place an array that it returned."""
        if type(observation) is np.ndarray and observation.shape == self._shape and observation.dtype == self._dtype:
            return observation.copy()
        return cast_to_space(self._space, observation)

    def _fault(self, during: str, error: BaseException) -> EnvironmentFault:
        what = f"{during}: {error}" if isinstance(error, ContractBroken) else describe_error(during, error)
        return EnvironmentFault(format_fault(self._env_id, self._env_index, self.life_steps, hide(what, self._secrets)))
