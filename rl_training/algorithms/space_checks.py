"""Which algorithm trains on which action space, in words for the user."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rl_training.envs.spaces import ActionCodec, ObservationEncoder, UnsupportedSpace


def encoding_faults(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], *, scaled: bool = False
) -> list[str]:
    """Returns why these spaces have no array form, a sentence each.

    Args:
        observation_space: Of one environment.
        action_space: Of one environment.
        scaled: Whether actions are scaled from [-1, 1], for which they need bounds.
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


def wrong_actions(algorithm: str, expected: str, action_space: gym.Space[Any]) -> str:
    """Returns the sentence that refuses an action space and names the algorithms that would do."""
    return (
        f"action space {action_space} is not supported; {algorithm} needs {expected}, and "
        f"{' and '.join(trained_by(action_space)) or 'no algorithm here'} would do"
    )


def trained_by(action_space: gym.Space[Any]) -> list[str]:
    """Returns the built-in algorithms that train on an action space."""
    match action_space:
        case gym.spaces.Discrete():
            return ["ppo", "dqn"]
        case gym.spaces.Box() if action_space.is_bounded():
            return ["ppo", "sac"]
        case gym.spaces.Box() | gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
            return ["ppo"]
    return []
