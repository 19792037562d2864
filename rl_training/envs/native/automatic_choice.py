"""Chooses how a new run steps its environments if its settings leave that open (`vectorization: auto`)."""

from __future__ import annotations

from typing import TypeVar

import gymnasium as gym

from rl_training.config.settings import AUTO, TrainConfig

ConfigT = TypeVar("ConfigT", bound=TrainConfig)

FEWEST = 8
"""The number of environments from which on stepping them as arrays is quicker than one after the other."""

_CARTPOLE = "gymnasium.envs.classic_control.cartpole"
EQUIVALENTS = ((f"{_CARTPOLE}:CartPoleEnv", f"{_CARTPOLE}:CartPoleVectorEnv"),)
"""Gymnasium's environments, each with its native vector environment of the same dynamics that is resumed exactly."""

ONE_BY_ONE = ("env_kwargs", "wrappers", "training_wrappers", "reset_options", "curriculum", "callbacks")
"""The settings that mean single environments, or may mean them."""


def choose_vectorization(config: ConfigT, *, has_callbacks: bool = False) -> ConfigT:
    """Returns the settings of a new run with the kind that `vectorization: auto` stands for; others as they are.

    The kind depends on the settings alone, not on the machine, so that a run is repeated with the same numbers.

    Args:
        config: The settings.
        has_callbacks: Whether the run has callbacks that are not in its settings and may reach its environments.
    """
    if config.vectorization != AUTO:
        return config
    native = not has_callbacks and _is_plain(config) and _has_equivalent(config)
    return config.model_copy(update={"vectorization": "native" if native else "sync"})


def _is_plain(config: TrainConfig) -> bool:
    """Returns whether the settings want enough environments, in this process, and nothing of single ones."""
    singly = any(getattr(config, key) for key in ONE_BY_ONE) or bool(config.metrics.info or config.mask_key)
    return config.num_envs >= FEWEST and not singly and getattr(config, "ranks", 1) == 1


def _has_equivalent(config: TrainConfig) -> bool:
    """Returns whether the id is registered as Gymnasium registers one of `EQUIVALENTS`."""
    spec = gym.registry.get(config.env_id)
    if spec is None or spec.kwargs or spec.additional_wrappers or spec.max_episode_steps is None:
        return False
    return (spec.entry_point, spec.vector_entry_point) in EQUIVALENTS
