"""Checks of spaces: which algorithm can train on which observation and action spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from rl_training.config.network import find_body
from rl_training.config.settings import TrainConfig
from rl_training.envs.spaces import ActionCodec, ObservationEncoder, UnsupportedSpace
from rl_training.envs.spaces.action_mask import find_mask_faults
from rl_training.envs.validation.first_look import CheckSpaces
from rl_training.errors import ConfigError
from rl_training.networks.named_body.module_body import make_body
from rl_training.seeding import generator


def find_encoding_faults(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], *, scaled: bool = False
) -> list[str]:
    """Returns the reasons why these spaces have no array form, one sentence each.

    Args:
        observation_space: The observation space of one environment.
        action_space: The action space of one environment.
        scaled: Whether actions are scaled from [-1, 1], which needs bounds.
    """
    faults = []
    try:
        ObservationEncoder(observation_space)
    except UnsupportedSpace as unsupported:
        faults.append(str(unsupported))
    try:
        ActionCodec(action_space, scaled=scaled)
    except UnsupportedSpace as unsupported:
        faults.append(str(unsupported))
    return faults


def include_body_and_mask(check_spaces: CheckSpaces, config: TrainConfig) -> CheckSpaces:
    """Returns a check of spaces that tries the body (`network.body`) and the action mask of the settings too."""
    body, mask_key = find_body(config), config.mask_key

    def check(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Sequence[str]:
        sentences = check_spaces(observation_space, action_space)
        if not sentences and mask_key is not None:
            sentences = find_mask_faults(observation_space, action_space, mask_key)
        if sentences or body is None:
            return sentences
        try:
            make_body(body, ObservationEncoder(observation_space, mask_key).features, generator(config.seed, "init"))
        except (ConfigError, UnsupportedSpace) as error:
            return [str(error)]
        return []

    return check if body is not None or mask_key is not None else check_spaces


def describe_wrong_actions(algorithm: str, expected: str, action_space: gym.Space[Any]) -> str:
    """Returns the sentence that refuses an action space and names the algorithms that support it."""
    return (
        f"action space {action_space} is not supported; {algorithm} needs {expected}; "
        f"{_join(list_algorithms_for(action_space))} can train on it"
    )


def _join(names: list[str]) -> str:
    *others, last = names or ["no built-in algorithm"]
    return f"{', '.join(others)} and {last}" if others else last


def list_algorithms_for(action_space: gym.Space[Any]) -> list[str]:
    """Returns the built-in algorithms that can train on an action space."""
    match action_space:
        case gym.spaces.Discrete():
            return ["ppo", "dqn"]
        case gym.spaces.Box() if action_space.is_bounded():
            return ["ppo", "sac", "td3", "tqc"]
        case gym.spaces.Box() | gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
            return ["ppo"]
    return []
