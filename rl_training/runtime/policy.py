"""What acts: native observations in, actions in the environment's own units out.

Shape legend: N observations, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder

BLOCK = 8
"""Rows of each forward pass. BLAS rounds a row differently in batches of different size, so the size never varies."""


class Policy(Protocol):
    """A greedy policy for one observation space and one action space."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """What it observes."""

    @property
    def action_space(self) -> gym.Space[Any]:
        """What it does."""

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns an action for each observation.

        Args:
            observations: As the environment returns them, one an environment.

        Returns:
            As many actions, each as the environment's `step` takes it. They do not depend on what else is in the batch.
        """


class GreedyPolicy:
    """The policy that a network stands for, without exploration and with frozen observation statistics.

    Several threads may ask it at once.
    """

    def __init__(
        self,
        *,
        encoder: ObservationEncoder,
        normalizer: ObservationNormalizer | None,
        act_greedy: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
        codec: ActionCodec,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
    ) -> None:
        """Takes its parts.

        Args:
            encoder: Turns native observations into arrays.
            normalizer: The observation statistics, which are only read; None where observations are taken as they are.
            act_greedy: Encoded observations [N, *O] to policy-side actions [N, *A].
            codec: Turns those into the environment's units.
            observation_space: What it observes.
            action_space: What it does.
        """
        self.encoder = encoder
        self.normalizer = normalizer
        self.act_greedy = act_greedy
        self.codec = codec
        self.observation_space = observation_space
        self.action_space = action_space
        self._one_at_a_time = threading.Lock()

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns the greedy action of each observation; see `Policy.act`."""
        encoded = self.encoder.encode_list(observations)  # [N, *O]
        if self.normalizer is not None:
            encoded = self.normalizer.normalize(encoded)
        count = len(encoded)
        padded = np.concatenate([encoded, np.repeat(encoded[-1:], -count % BLOCK, axis=0)])
        # act_greedy computes in memory that is always the same, and may hand it out
        with self._one_at_a_time:
            blocks = [np.array(self.act_greedy(padded[i : i + BLOCK])) for i in range(0, count, BLOCK)]
        return list(self.codec.to_env(np.concatenate(blocks)[:count]))
