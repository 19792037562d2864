"""Checks an instance of an environment before it is played: its spaces, and the signatures of `reset` and `step`."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.mask_guard import MaskGuard
from rl_training.envs.contract.step_contract import (
    Breach,
    check_reset_result,
    check_space_type,
    check_step_result,
    failure,
)
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.space_leaves import list_leaves
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.validation.report import Findings
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused

CheckSpaces = Callable[[gym.Space[Any], gym.Space[Any]], Sequence[str]]
"""`check_spaces(observation_space, action_space)` returns why an algorithm can't train on the spaces, one sentence per
reason."""

MOST_CHOICES = 1_000_000
"""The largest discrete part of an observation, which becomes a number for each choice."""


def check_interface(
    env: gym.Env[Any, Any],
    config: TrainConfig,
    check_spaces: CheckSpaces | None,
    found: Findings,
    watch: CallWatch,
    options: Mapping[str, Any],
) -> bool:
    """Reports faults of spaces and signatures, and returns whether the environment can be played.

    An environment that the algorithm refuses is not played, because it can't be trained on anyway.

    Args:
        env: The environment with its wrappers.
        config: The settings.
        check_spaces: Returns why the algorithm can't train on the spaces.
        found: Takes the findings.
        watch: Watches the calls.
        options: The options of each reset.
    """
    observation_space, action_space = (getattr(env, name, None) for name in ("observation_space", "action_space"))
    broken = [
        *check_space_type("observation_space", observation_space),
        *check_space_type("action_space", action_space),
    ]
    found.add(broken)
    if broken:
        return False
    assert observation_space is not None
    assert action_space is not None
    sentences = check_spaces(observation_space, action_space) if check_spaces is not None else ()
    for sentence in sentences:
        found.add([Breach("fatal", "algorithm", f"{config.algo} can't train on it: {sentence}")])
    if not sentences:
        _check_array_forms(config, observation_space, action_space, found)
    if isinstance(action_space, spaces.Box) and not _is_bounded(action_space):
        message = f"action space {action_space} has no bounds; actions are sent as the policy draws them"
        found.add([Breach("warning", "unbounded-action", message)])
    return not sentences and _check_signatures(env, found, watch, options)


def _check_array_forms(
    config: TrainConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any], found: Findings
) -> None:
    try:
        encoder = ObservationEncoder(observation_space, config.mask_key)
        found.add(_check_choices(observation_space))
        if config.normalization.observation:
            ObservationNormalizer(encoder, config.normalization.clip)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "observation-space", str(error))])
    try:
        ActionCodec(action_space)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "action-space", str(error))])


def _check_choices(space: gym.Space[Any]) -> list[Breach]:
    """Returns the breaches of discrete parts with more choices than can be one-hot encoded in each step."""
    breaches = []
    for leaf in list_leaves(space):
        part = leaf.space
        if not isinstance(part, spaces.Discrete | spaces.MultiDiscrete):
            continue
        choices = int(part.n) if isinstance(part, spaces.Discrete) else sum(map(int, part.nvec.ravel()))
        if choices > MOST_CHOICES:
            name = f" {leaf.name}" if leaf.name else ""
            message = (
                f"observation{name} {part} has {choices:,} choices, which one-hot encoding makes {choices:,} float32 "
                f"numbers, {choices:,} * 4 bytes = {4e-6 * choices:,.0f} MB, in each step; expected at most "
                f"{MOST_CHOICES:,}: give it as numbers with a wrapper, for example the digits or coordinates that the "
                f"choice stands for (a Box, or a MultiDiscrete of smaller parts)"
            )
            breaches.append(Breach("fatal", "observation-space", message))
    return breaches


def _check_signatures(
    wrapped: gym.Env[Any, Any], found: Findings, watch: CallWatch, options: Mapping[str, Any]
) -> bool:
    """Calls the innermost environment, whose results wrappers hide; returns whether the environment can be played.

    If its actions are masked, it is not stepped, because it may refuse a random one; its guard checks what it returns.
    """
    env = wrapped.unwrapped
    parameters = inspect.signature(env.reset).parameters.values()
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    missing = [name for name in ("seed", "options") if name not in {parameter.name for parameter in parameters}]
    if missing and not takes_any:
        message = (
            f"reset takes no {' and no '.join(f'`{name}`' for name in missing)}; it must be "
            f"reset(*, seed=None, options=None) and seed its randomness with super().reset(seed=seed)"
        )
        found.add([Breach("fatal", "reset-signature", message)])
        return False
    action_space = deepcopy(env.action_space)
    action_space.seed(0)
    during = "the first reset"
    try:
        given = deepcopy(dict(options)) or None
        found.add(check_reset_result(watch.call(during, lambda: env.reset(seed=0, options=given))), step=0)
        if not isinstance(wrapped, MaskGuard):
            during = "the first step"
            found.add(check_step_result(watch.call(during, lambda: env.step(action_space.sample()))), step=1)
    except USER_CODE_ERRORS as error:
        at_reset = during == "the first reset"
        advice = _advise_options(error) if at_reset and not options else ""
        found.add([failure(during, error, advice)], step=0 if at_reset else 1)
    return not {"reset-result", "step-result", "raised", "blocked"} & {finding.code for finding in found.sort()}


def _advise_options(error: BaseException) -> str:
    """Returns the advice to set reset options, if the error, or the line of code that raised it, speaks of options."""
    frames = traceback.extract_tb(error.__traceback__)
    line = frames[-1].line if frames else ""
    if "option" not in f"{error} {line}".lower():
        return ""
    return "; reset got no options: give them in reset_options (evaluation.reset_options for evaluation)"


def _is_bounded(space: spaces.Box) -> bool:
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
