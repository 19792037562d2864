"""Acts in blocks of steps: only what the environments wait for is computed between two steps.

Noise is drawn for all steps of a block before the first one, and values and log-probabilities are computed after the
last one, in a few calls. The numbers, and the state of the generator between blocks, are those of acting step by step.

Shapes: S steps, N environments, K outputs of the policy head.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.spaces.action_mask import take_features, take_mask
from rl_training.networks.actor_critic import ActorCritic
from rl_training.networks.distributions import FORBIDDEN

ROWS = 1024
"""Number of observations of a block, whose hidden units should fit the second-level cache."""


class BlockActing:
    """Draws the actions of a rollout.

    Args:
        network: The networks of policy and value function.
        draw_noise: Draws the noise of S steps of N environments, [S, N, K].
        get_rng: Returns the generator that `draw_noise` draws from.
    """

    def __init__(
        self,
        network: ActorCritic,
        draw_noise: Callable[[int, int], np.ndarray],
        get_rng: Callable[[], np.random.Generator],
    ) -> None:
        self._network, self._distribution = network, network.distribution
        self._draw_noise, self._get_rng = draw_noise, get_rng
        self._size = (0, 0)
        self._taken = 0
        self.is_full = False
        """Whether the newest step was the block's last one, so that `complete` must precede the next."""

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Returns an action for each environment, [N, *A].

        Args:
            observation: [N, *O]; the rollout buffer stores it before the next call of `complete`.
        """
        t = self._taken
        if t == 0:
            self._begin(len(observation))
        self._taken = t + 1
        self.is_full = self._taken == self._size[0]
        outputs_NK, allowed_NK = self._block.act(t, take_features(observation)), take_mask(observation)
        if allowed_NK is not None:
            outputs_NK[~allowed_NK] = FORBIDDEN  # in place, because `complete` reads these outputs
        return self._distribution.choose(outputs_NK, self._noise_SNK[t])

    def complete(self, buffer: RolloutBuffer) -> None:
        """Stores values and log-probabilities of the steps since the last call, which are the newest in the buffer."""
        taken, self._taken = self._taken, 0
        if not taken:
            return
        if taken < self._size[0]:  # the generator returns to where it would be, had each step drawn its own noise
            self._get_rng().bit_generator.state = self._before
            self._draw_noise(taken, self._size[1])
        newest = slice(buffer.position - taken, buffer.position)
        outputs_SNK, noise_SNK = self._block.outputs[:taken], self._noise_SNK[:taken]
        logprobs_SN = self._distribution.log_probs(outputs_SNK, buffer.actions[newest], noise_SNK)
        buffer.store_estimates(self._block.values(take_features(buffer.obs[newest])), logprobs_SN)

    def _begin(self, rows: int) -> None:
        """Begins a block of steps of N environments."""
        size = (max(1, ROWS // rows), rows)
        if size != self._size:
            self._size, self._block = size, self._network.make_block(*size)
        self._block.begin()
        self._before = self._get_rng().bit_generator.state
        self._noise_SNK = self._draw_noise(*size)
