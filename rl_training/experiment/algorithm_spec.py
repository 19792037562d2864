"""The description of an algorithm that the registry holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.config.settings import TrainConfig

if TYPE_CHECKING:
    import gymnasium as gym

    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.policy import Policy
    from rl_training.runtime.trainer import Trainer, TrainResult


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """One algorithm, as the rest of the system sees it."""

    name: str
    """The value of `algo` in settings."""
    config_type: type[TrainConfig]
    """The class of the algorithm's settings."""
    train: Callable[..., TrainResult]
    """`train(config, callbacks=(), resume_from=None) -> TrainResult`."""
    make_trainer: Callable[..., Trainer]
    """`make_trainer(config, callbacks=(), *, resume_from=None, stop=None) -> Trainer`."""
    check_spaces: Callable[[gym.Space[Any], gym.Space[Any]], Sequence[str]]
    """`check_spaces(observation_space, action_space)` returns a sentence for each reason why it can't train on them."""
    load_policy: Callable[[Checkpoint], Policy]
    """`load_policy(checkpoint)` returns the greedy policy of a verified checkpoint."""
