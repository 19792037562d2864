"""Policies: from native observations to actions in the environment's units.

Shapes: N observations, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder

BLOCK = 8
"""The rows of each forward pass. BLAS rounds a row differently in batches of other sizes, so the size is fixed."""


class Policy(Protocol):
    """A greedy policy for one observation space and one action space."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations."""

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns an action for each observation.

        Args:
            observations: One observation of each environment, as the environment returns it.

        Returns:
            One action for each observation, as the environment's `step` takes it; it depends on no other observation.
        """


@dataclass(kw_only=True, eq=False)
class GreedyPolicy:
    """The policy of a network, without exploration and with fixed observation statistics.

    Several threads may call it at the same time.
    """

    encoder: ObservationEncoder
    normalizer: ObservationNormalizer | None
    """The observation statistics, which are not updated; None without normalisation."""
    act_greedy: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    """Returns policy-side actions [N, *A] for encoded observations [N, *O]."""
    codec: ActionCodec
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns the greedy action of each observation; see `Policy.act`."""
        encoded = self.encoder.encode_list(observations)  # [N, *O]
        if self.normalizer is not None:
            encoded = self.normalizer.normalize(encoded)
        count = len(encoded)
        padded = np.concatenate([encoded, np.repeat(encoded[-1:], -count % BLOCK, axis=0)])
        # act_greedy may return memory that its next call overwrites
        with self._one_at_a_time:
            blocks = [np.array(self.act_greedy(padded[i : i + BLOCK])) for i in range(0, count, BLOCK)]
        return list(self.codec.to_env(np.concatenate(blocks)[:count]))
