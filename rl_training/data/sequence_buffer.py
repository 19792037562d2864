"""A rollout buffer whose minibatches hold complete sequences, for networks with a memory.

Shapes: T steps, N environments, L steps of a sequence, C sequences, B transitions of a minibatch, M the shape of the
memories of one environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from rl_training.data.rollout_buffer import Minibatch, RolloutBuffer


@dataclass(frozen=True)
class SequenceMinibatch(Minibatch):
    """A minibatch of sequences within an episode: all transitions of the first one, then those of the second."""

    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [C] the number of transitions of each sequence."""
    memories: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """float32 [C, *M] the memories before the first transition of each sequence; zero where an episode begins."""


class SequenceBuffer(RolloutBuffer):
    """A rollout that is divided into sequences of L steps of one environment, each with the memory before it.

    The sequences of a shortened rollout may end before L steps.

    Attributes:
        memories: Memories before the first step of each sequence, float32 [T / L, N, *M].
        sequence_length: Number of steps of a sequence (L).
    """

    def __init__(
        self,
        rollout_steps: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype[Any],
        action_shape: tuple[int, ...],
        action_dtype: np.dtype[Any],
        *,
        sequence_length: int,
        memory_shape: tuple[int, ...],
    ) -> None:
        super().__init__(rollout_steps, num_envs, observation_shape, observation_dtype, action_shape, action_dtype)
        self.sequence_length = sequence_length
        self.memories = np.zeros((rollout_steps // sequence_length, num_envs, *memory_shape), np.float32)

    def store_memories(self, memories: np.ndarray) -> None:
        """Stores the memories before the newest step, [N, *M], if sequences begin with it."""
        t = self.position - 1
        if t % self.sequence_length == 0:
            self.memories[t // self.sequence_length] = memories

    def draw_order(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the indices of all transitions, sequence by sequence, with the sequences in random order."""
        steps = self.sequence_length
        index_TN = np.arange(self.num_transitions).reshape(self.position, self.num_envs)
        sequences = [row for start in range(0, self.position, steps) for row in index_TN[start : start + steps].T]
        return np.concatenate([sequences[i] for i in rng.permutation(len(sequences))])

    def iter_minibatches(self, batch_size: int, order: np.ndarray) -> Iterator[SequenceMinibatch]:
        """Yields minibatches of batch_size / L sequences in a given order; the last one may have fewer.

        Where an episode begins within a sequence, another sequence begins too, with an empty memory.

        Args:
            batch_size: Number of transitions per minibatch if no rollout is shortened.
            order: What `draw_order` returned, or the rest of it from the beginning of a sequence on.
        """
        steps, envs = np.divmod(order, self.num_envs)
        chunks = steps // self.sequence_length
        firsts = np.diff(chunks * self.num_envs + envs, prepend=-1) != 0  # which transitions are a sequence's first
        begins = firsts | self.dones[steps - 1, envs]  # for step 0, which is always a first one, the second is unused
        count = batch_size // self.sequence_length
        cuts = {0, *np.flatnonzero(firsts)[count::count].tolist(), len(order)}
        batches = [slice(start, end) for start, end in pairwise(sorted(cuts))]
        for batch, minibatch in zip(batches, self.select(order[batch] for batch in batches), strict=True):
            starts = np.flatnonzero(begins[batch])
            memories = self.memories[chunks[batch][starts], envs[batch][starts]]
            memories[~firsts[batch][starts]] = 0.0
            lengths = np.diff(starts, append=len(minibatch))
            yield SequenceMinibatch(**vars(minibatch), lengths=lengths, memories=memories)

    def _filled(self) -> dict[str, np.ndarray]:
        sequences = -(-self.position // self.sequence_length)
        return {**super()._filled(), "memories": self.memories[:sequences]}
