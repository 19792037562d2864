"""PPO on several ranks, each of which holds the transitions of its own environments.

All ranks have the same weights and draw the same random numbers. Each computes the gradient of its part of a minibatch,
and the parts are averaged in one call, so that the update is that of one rank with all environments, up to the order of
sums. See `docs/algorithms/ppo.md`.

Shapes: S steps, N environments of all ranks, n of this rank, M minibatches of a pass, B minibatch on all ranks, b this
rank's part of it, P parameters, R ranks, O observation dims, A action dims, K outputs of the policy head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rl_training.algorithms.explained_variance import explain_variance
from rl_training.algorithms.ppo import PPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import Minibatch, RolloutBuffer
from rl_training.distributed.moments import Moments, combine, measure
from rl_training.distributed.share import Exchange, Share
from rl_training.envs.spaces import ActionCodec, ObservationEncoder


@dataclass(frozen=True)
class Part(Minibatch):
    """This rank's part of a minibatch, whose advantages are normalised if the settings ask for it."""

    total: int = 0
    """Number of transitions of the minibatch on all ranks (B)."""

    def __len__(self) -> int:
        return self.total


class RankedPPO(PPO):
    """Acts and learns together with the other ranks.

    Args:
        config: The settings of the run, whose `num_envs` are those of all ranks.
        encoder: Encoder of the observations.
        codec: Codec of the actions.
        device: The device of this rank.
        exchange: The connection to the other ranks.
    """

    def __init__(
        self,
        config: PPOConfig,
        encoder: ObservationEncoder,
        codec: ActionCodec,
        device: torch.device,
        exchange: Exchange,
    ) -> None:
        super().__init__(config, encoder, codec, device)
        self._backpropagate = self._loss_gradient  # parts differ in size, and a graph belongs to one size
        self._exchange, self.share = exchange, Share(exchange.rank, exchange.ranks, config.num_envs)
        # The gradient [P], and all measurements but its norm, for the one call of each minibatch.
        self._message = torch.zeros(len(self.parameters.gradient) + 5, dtype=self.parameters.gradient.dtype)
        self._message = self._message.to(device)

    def draw_noise(self, steps: int, num_envs: int) -> np.ndarray:
        """Draws the noise that one rank would give to this rank's environments, [S, n, K]."""
        return super().draw_noise(steps, self.share.num_envs)[:, self.share.rows]

    def _draw_order(self, buffer: RolloutBuffer) -> np.ndarray:
        return self.state.permutation_rng.permutation(self._count_transitions(buffer))

    def _count_transitions(self, buffer: RolloutBuffer) -> int:
        return buffer.position * self.share.num_envs

    def _divide(self, buffer: RolloutBuffer, order: np.ndarray) -> Iterator[Minibatch]:
        size = self.config.batch_size
        minibatches = [order[start : start + size] for start in range(0, len(order), size)]
        indices = [self.share.select(minibatch) for minibatch in minibatches]
        means_M, deviations_M = np.zeros(len(indices)), np.ones(len(indices))
        if self.config.normalize_advantage:
            advantages = buffer.advantages[: buffer.position].ravel()
            means_M, deviations_M = self._measure_advantages([advantages[index] for index in indices])
        parts = zip(buffer.select(indices), minibatches, means_M, deviations_M, strict=True)
        for part, minibatch, mean, deviation in parts:
            advantages_b = part.advantages
            if self.config.normalize_advantage and len(minibatch) > 1:  # as `normalize_advantages`
                scaled_b = (advantages_b.astype(np.float64) - mean) / (deviation + 1e-8)
                advantages_b = scaled_b.astype(advantages_b.dtype)
            yield Part(**{**vars(part), "advantages": advantages_b}, total=len(minibatch))

    def _measure_advantages(self, parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and deviation of the advantages of each minibatch on all ranks, [M], in one call.

        Args:
            parts: The advantages of this rank's part of each minibatch.
        """
        packed_RM3 = self._exchange.gather(
            np.array([[each.count, each.mean, each.squares] for each in map(measure, parts)])
        )
        counts_M, means_M, squares_M = combine(Moments(*np.moveaxis(packed_RM3, 2, 0)))
        return means_M, np.sqrt(squares_M / np.maximum(counts_M - 1, 1))

    def _normalize(self, minibatch: Minibatch) -> np.ndarray:
        return minibatch.advantages  # `_divide` has normalised them

    def _write_gradient(self, minibatch: Minibatch, clip_range: float) -> list[float]:
        """Writes the gradient of the minibatch on all ranks, the average of the parts' by their numbers of transitions.

        Everything that `_loss_gradient` computes, except the norm, is a mean over transitions.
        """
        gradient, message, own = self.parameters.gradient, self._message, len(minibatch.actions)
        message.zero_()
        if own:
            *means, _ = super()._write_gradient(minibatch, clip_range)
            message[:-5] = gradient
            message[-5:] = torch.tensor(means, dtype=message.dtype)
            message.mul_(own / len(minibatch))
        self._exchange.sum(message)
        gradient.copy_(message[:-5])
        return [*message[-5:].tolist(), float(self.parameters.squared_gradient_norm())]

    def _explained_variance(self, buffer: RolloutBuffer) -> dict[str, float]:
        returns = buffer.returns[: buffer.position].astype(np.float64).ravel()
        errors = returns - buffer.values[: buffer.position].ravel()
        largest = np.abs(returns).max()
        own = [np.array([len(rows), *measure(rows)[1:], largest]) for rows in (returns, errors)]
        packed_R24 = self._exchange.gather(np.stack(own))
        counts_2, _, squares_2 = combine(Moments(*np.moveaxis(packed_R24[:, :, :3], 2, 0)))
        variance, error_variance = (squares_2 / counts_2).tolist()
        return explain_variance(variance, error_variance, float(packed_R24[:, 0, 3].max()))
