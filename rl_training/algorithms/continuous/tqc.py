"""Truncated quantile critics, TQC (Kuznetsov et al. 2020): SAC whose critics estimate the distribution of the return.

Shapes: N environments, B batch, A action dims, S critics, M quantiles of one critic, T samples of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from rl_training.algorithms.continuous.actor_critic import find_space_faults
from rl_training.algorithms.continuous.sac import SAC
from rl_training.algorithms.quantile_loss import midpoint_levels, quantile_huber
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import to_arrays


class TQC(SAC):
    """Acts, and learns from replayed transitions, with critics of M quantiles each.

    A target pools the quantiles of all target critics and leaves out the largest ones, which overestimate most.
    """

    config: TQCConfig

    def __init__(
        self, config: TQCConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks and the temperature; for the arguments see `OffPolicyActorCritic`."""
        super().__init__(config, encoder, codec, device, critic_outputs=(config.quantiles,) * config.critics)
        self._levels = midpoint_levels(config.quantiles, device).repeat(config.critics)  # [S M]
        self._kept = config.critics * (config.quantiles - config.drop_quantiles)

    def q_values(self, observation: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Returns the mean of all quantiles for actions [N, A] in [-1, 1], float32 [N]."""
        backend = self.backend
        values = self.critics.evaluate(to_arrays(observation, backend), backend.array(actions))
        return backend.numpy(self._average(values))

    def _next_values(self, values: Sequence[Array]) -> Array:
        """Returns the least quantiles of all target critics, ascending, [B, T] (section 4.3)."""
        pooled_BK = self.backend.xp.concatenate(list(values), 1)
        return self.backend.sort_rows(pooled_BK)[:, : self._kept]

    def _critic_loss(self, values: Sequence[Array], targets_BT: Array) -> tuple[Array, list[Array]]:
        """Returns the quantile Huber loss and its gradient by the quantiles, [B, M] each.

        The loss is the mean over the batch and all pairs of a critic's quantile and a target's sample, summed over the
        critics. The samples ascend, because r + discount * z rises with z.
        """
        backend, count = self.backend, self.config.quantiles
        quantiles_BK = backend.tensor(backend.xp.concatenate(list(values), 1))
        losses_BK, slopes_BK = quantile_huber(quantiles_BK, backend.tensor(targets_BT), self._levels)
        critic_loss = backend.mean(backend.view(losses_BK).reshape(-1)) * len(values)
        d_quantiles_BK = backend.view(slopes_BK) * (1.0 / (len(targets_BT) * count))
        return critic_loss, [d_quantiles_BK[:, s * count : (s + 1) * count] for s in range(len(values))]

    def _policy_values(self, values: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Returns what the policy maximises, the mean of all quantiles [B], and the gradient of minus its mean."""
        share = -1.0 / (len(self._levels) * len(values[0]))
        return self._average(values), [self.backend.xp.full_like(values_BM, share) for values_BM in values]

    def _average(self, values: Sequence[Array]) -> Array:
        """Returns the mean of all quantiles of all critics, [B]."""
        total_B: Array = sum(self.backend.row_sums(values_BM) for values_BM in values)
        return total_B * (1.0 / len(self._levels))


check_spaces = partial(find_space_faults, "tqc")
"""Returns the reasons why TQC can't train on two spaces, one sentence each; see `find_space_faults`."""
