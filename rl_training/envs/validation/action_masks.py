"""Checks of action masks: masks that nothing uses, and forbidden actions that the environment takes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.config.action_mask import IN_INFOS, MASK_KEY
from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.mask_guard import MaskGuard
from rl_training.envs.contract.step_contract import Breach
from rl_training.envs.validation.opening import open_env
from rl_training.envs.validation.report import Findings
from rl_training.errors import USER_CODE_ERRORS

STATES = 100
"""Number of states in which a forbidden action is looked for."""


def check_unused_mask(config: TrainConfig, space: gym.Space[Any], in_infos: bool) -> list[Breach]:
    """Returns a warning if the environment gives a mask of actions, which the settings do not apply."""
    in_observation = isinstance(space, spaces.Dict) and MASK_KEY in space.spaces
    if config.mask_key is not None or not (in_infos or in_observation):
        return []
    where = "its observation, where the policy sees it as numbers" if in_observation else "its infos"
    advice = f"; set action_mask: {MASK_KEY if in_observation else IN_INFOS}"
    message = (
        f"it gives an {MASK_KEY} in {where}; {config.algo} does not apply it and may choose actions that it forbids"
        f"{advice if hasattr(config, 'action_mask') else ''}"
    )
    return [Breach("warning", "action-mask", message)]


def check_forbidden_action(config: TrainConfig, found: Findings, watch: CallWatch, options: Mapping[str, Any]) -> None:
    """Takes a forbidden action, in the first state that has one; a warning says if the environment takes it too.

    Training never does so. An environment that raises an error, or takes no forbidden action, agrees with its mask.
    """
    if config.mask_key is None:
        return
    rng = np.random.default_rng(config.seed)
    with open_env(config, found, watch) as env:
        if not isinstance(env, MaskGuard):
            return
        try:
            forbidden = _find_forbidden(env, watch, rng, config.seed, options)
            if forbidden is None:
                return
            watch.call("a step with a forbidden action", env.step, forbidden)
        except USER_CODE_ERRORS:
            return
    message = (
        f"its step took the action {forbidden}, which its mask forbids; training never chooses such an action: if some "
        f"of them are useful, the mask is wrong"
    )
    found.add([Breach("warning", "forbidden-action", message)])


def _find_forbidden(
    env: MaskGuard, watch: CallWatch, rng: np.random.Generator, seed: int, options: Mapping[str, Any]
) -> Any | None:
    """Plays with allowed actions until a state forbids an action, and returns that action, or None."""
    reset = partial(env.reset, options=deepcopy(dict(options)) or None)
    watch.call("a reset before a forbidden action", partial(reset, seed=seed))
    for _ in range(STATES):
        if (forbidden := env.sample_forbidden(rng)) is not None:
            return forbidden
        _, _, terminated, truncated, _ = watch.call("a step before one", env.step, env.sample_allowed(rng))
        if terminated or truncated:
            watch.call("a reset before a forbidden action", reset)
    return None
