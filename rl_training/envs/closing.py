"""Closes environments; a failure to close is logged and never changes the outcome of a run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rl_training.envs.contract.step_contract import describe_error
from rl_training.errors import USER_CODE_ERRORS
from rl_training.security.secrets import hide

logger = logging.getLogger(__name__)


def close_quietly(
    env_id: str, envs: Iterable[gym.Env[Any, Any] | VectorEnv[Any, Any, Any]], secrets: Collection[str] = ()
) -> None:
    """Closes every environment, even after one fails to close; a single warning names the first failure."""
    failures: list[str] = []
    for env in envs:
        try:
            env.close()
        except USER_CODE_ERRORS as error:
            failures.append(hide(describe_error("close", error), secrets))
    if failures:
        others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        logger.warning("environment %s: %s%s", env_id, failures[0], others)
