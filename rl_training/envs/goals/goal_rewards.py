"""Asks an environment what transitions would have given for other goals.

The environment is one of its own, which is never stepped, so that nothing changes in those of training.

Shapes: K transitions, G numbers in a goal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.contract_guard import find_secrets, hide_secrets_in_warnings, redact_cause
from rl_training.envs.contract.step_contract import describe_error
from rl_training.envs.goals.goal_columns import find_goal_columns
from rl_training.envs.single_env import make_env
from rl_training.envs.spaces import ObservationEncoder
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, EnvironmentRefused
from rl_training.security.secrets import hide
from rl_training.system.constructor_cleanup import close_on_error

REWARD, TERMINATED = "compute_reward", "compute_terminated"
"""The methods of a goal-conditioned environment, as in Gymnasium-Robotics."""


class GoalRewards:
    """Computes the rewards of transitions for other goals, and whether they end the episode.

    Args:
        config: The settings of the training environments.
        encoder: The encoder of their observations.

    Raises:
        EnvironmentRefused: The environment can't be made, has no goals, or lacks a method that computes with them.
        EnvironmentFault: Its reset failed.
    """

    @close_on_error
    def __init__(self, config: TrainConfig, encoder: ObservationEncoder) -> None:
        self.columns = find_goal_columns(encoder)
        self._env_id, self._secrets = config.env_id, find_secrets(config)
        self._opened = ExitStack()
        env = self._opened.enter_context(closing(make_env(config, config.num_envs)))
        self._compute_reward, self._compute_terminated = find_goal_methods(env)
        self._watch = self._opened.enter_context(CallWatch(config.env_id, ends=False))
        self._watch.call("the reset for hindsight", lambda: env.reset(seed=config.seed))

    def compute(
        self, achieved_KG: NDArray[np.float32], desired_KG: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Returns the rewards of transitions, and whether they end the episode, given what they achieved.

        Args:
            achieved_KG: The goals that the transitions' next observations achieved, as encoded.
            desired_KG: The goals that are desired instead.

        Returns:
            float32 [K] and bool [K].

        Raises:
            EnvironmentFault: The environment raised, exited, or returned something else.
        """
        count = len(achieved_KG)
        goals = [self.columns.to_goals(each) for each in (achieved_KG, desired_KG)]
        rewards = self._call(REWARD, self._compute_reward, goals)
        with np.errstate(over="ignore"):
            rewards_K = self._as_array(REWARD, rewards, np.float32)
        if rewards_K.shape != (count,):
            raise self._fault(f"{REWARD} returned {rewards_K.shape}, expected ({count},) for {count} pairs of goals")
        if not np.isfinite(rewards_K).all():
            raise self._fault(f"{REWARD} returned a reward that is not finite in float32")
        terminated = self._as_array(TERMINATED, self._call(TERMINATED, self._compute_terminated, goals), np.bool_)
        if terminated.shape not in ((), (count,)):
            raise self._fault(
                f"{TERMINATED} returned {terminated.shape}, expected ({count},) for {count} pairs of goals"
            )
        return rewards_K, np.broadcast_to(terminated, (count,))

    def close(self) -> None:
        """Closes the environment."""
        self._opened.close()

    def _call(self, name: str, method: Callable[..., Any], goals: list[NDArray[Any]]) -> Any:
        try:
            with hide_secrets_in_warnings(self._secrets):
                # Infos are not stored, so each is empty.
                return self._watch.call(f"{name} in training", method, *goals, [{}] * len(goals[0]))
        except USER_CODE_ERRORS as error:
            raise self._fault(describe_error(name, error)) from redact_cause(error, self._secrets)

    def _as_array(self, name: str, result: Any, dtype: type[Any]) -> NDArray[Any]:
        try:
            return np.asarray(result).astype(dtype)
        except (TypeError, ValueError) as error:
            raise self._fault(f"{name} returned no numbers: {error}") from None

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"environment {self._env_id}: {hide(what, self._secrets)}")


def find_goal_methods(env: gym.Env[Any, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns `compute_reward` and `compute_terminated` of an environment, which a wrapper may define.

    Raises:
        EnvironmentRefused: It has only one of them, or none.
    """
    methods = []
    for name, otherwise in ((REWARD, ""), (TERMINATED, ", which may return False if no goal ends an episode")):
        try:
            methods.append(env.get_wrapper_attr(name))
        except AttributeError:
            raise EnvironmentRefused(
                f"hindsight needs the method {name}(achieved_goal, desired_goal, info) for batches of goals, and the "
                f"environment has none{otherwise}; add it to the environment or in a wrapper"
            ) from None
    return methods[0], methods[1]
