"""A replay buffer that draws transitions with goals that their episodes have reached later (hindsight).

The ring holds the transitions as they were. A goal is replaced when a transition is drawn, so each draw can have
another goal, and shards and checkpoints are those of a buffer without hindsight.

Shapes: R rows (vector steps), N environments, B batch, K transitions with another goal, G numbers in a goal, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.envs.goals.goal_columns import GoalColumns
from rl_training.envs.spaces import ObservationEncoder

END_BYTES = 4
"""Bytes per transition for the end of its episode."""
_RUNNING = -1

ComputeRewards = Callable[[NDArray[np.float32], NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.bool_]]]
"""Returns rewards [K] and whether episodes end [K], given achieved and desired goals [K, G]."""


class EpisodeEnds:
    """For each transition in a ring, the row of the newest one of its episode.

    It follows from the flags of the transitions alone, so a checkpoint needs nothing of it.

    Args:
        rows: Number of rows of the ring (R).
        num_envs: Number of environments (N).
    """

    def __init__(self, rows: int, num_envs: int) -> None:
        self._ends_RN = np.full((rows, num_envs), _RUNNING, np.int32)
        self._begins = [0] * num_envs
        self._steps = 0

    def add(self, first: int, done_SN: NDArray[np.bool_]) -> None:
        """Adds steps, which overwrite those that the ring held in their rows.

        Args:
            first: Number of the first step in the run, from 0; the steps before it were added already, or are not in
                the ring.
            done_SN: Whether each step ended its episode; the steps do not extend past the end of the ring.
        """
        row = first % len(self._ends_RN)
        self._ends_RN[row : row + len(done_SN)] = _RUNNING
        self._steps = first + len(done_SN)
        if np.count_nonzero(done_SN):
            for step, env in np.argwhere(done_SN).tolist():
                self._end(env, first + step)

    def cut(self, env_indices: Sequence[int]) -> None:
        """Ends the running episodes of some environments at the newest step."""
        for env in env_indices:
            self._end(env, self._steps - 1)

    def draw_later(self, places_K: NDArray[np.int64], luck_K: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns places of the same episodes, each drawn from a transition's own place to the newest one.

        Args:
            places_K: The places of transitions in the flattened ring.
            luck_K: Uniform draws from [0, 1).
        """
        rows, num_envs = self._ends_RN.shape
        rows_K, envs_K = np.divmod(places_K, num_envs)
        ends_K = self._ends_RN.reshape(-1)[places_K]
        ends_K = np.where(ends_K == _RUNNING, (self._steps - 1) % rows, ends_K)
        steps_K = (luck_K * ((ends_K - rows_K) % rows + 1)).astype(np.int64)
        later_K: NDArray[np.int64] = (rows_K + steps_K) % rows * num_envs + envs_K
        return later_K

    def _end(self, env: int, last: int) -> None:
        """Ends the running episode of an environment at step `last` of the run."""
        rows = len(self._ends_RN)
        first = max(self._begins[env], self._steps - rows)
        self._ends_RN[np.arange(first, last + 1) % rows, env] = last % rows
        self._begins[env] = last + 1


class HindsightReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` of single steps whose samples have, in part, goals that were achieved later in the episode.

    Source: Andrychowicz et al. 2017, "Hindsight Experience Replay", section 4.5, strategy `future`.

    Args:
        capacity: Number of transitions over all environments; a multiple of `num_envs`.
        num_envs: Number of environments (N).
        encoder: Encoder of the observations.
        action_shape: Shape of one action of the policy.
        action_dtype: Dtype of one action.
        gamma: Discount factor of a step.
        goals: Where the goals are in an observation.
        compute_rewards: Computes what transitions give for other goals.
        relabelled_fraction: The probability that a drawn transition gets another goal.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        encoder: ObservationEncoder,
        action_shape: tuple[int, ...],
        action_dtype: np.dtype[Any],
        gamma: float,
        goals: GoalColumns,
        compute_rewards: ComputeRewards,
        relabelled_fraction: float,
    ) -> None:
        super().__init__(capacity, num_envs, encoder.shape, encoder.dtype, action_shape, action_dtype, gamma=gamma)
        self._encoder, self._goals, self._compute_rewards = encoder, goals, compute_rewards
        self._fraction = relabelled_fraction
        self._achieved_G = self._vector(self._flat["next_obs"])[:, goals.achieved]
        self._ends = EpisodeEnds(len(self.rewards), num_envs)

    def add(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        next_obs: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Stores a step of all environments, like `ReplayBuffer.add`."""
        step = self.total // self.num_envs
        super().add(obs, actions, rewards, next_obs, terminated, truncated)
        self._ends.add(step, (terminated | truncated)[None])

    def cut_newest(self, env_indices: Sequence[int]) -> None:
        """Cuts the newest transition of some environments, like `ReplayBuffer.cut_newest`."""
        super().cut_newest(env_indices)
        self._ends.cut(env_indices)

    def fill_rows(self, first: int, count: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restores transitions like `ReplayBuffer.fill_rows`; rows must be restored in ascending order."""
        super().fill_rows(first, count, arrays)
        rows = self.rows(first, count)
        self._ends.add(first // self.num_envs, self.terminated[rows] | self.truncated[rows])

    def sample(self, batch_size: int, rng: np.random.Generator) -> ReplayBatch:
        """Draws transitions like `ReplayBuffer.sample`, and replaces the goals of about the fraction of them.

        Raises:
            EnvironmentFault: The environment could not compute the rewards for other goals.
        """
        places_B, luck_B2 = self._draw_with_luck(batch_size, rng)
        batch = self._gather(places_B)
        chosen_K = np.flatnonzero(luck_B2[:, 0] < self._fraction)
        if len(chosen_K):
            self._replace_goals(batch, chosen_K, self._ends.draw_later(places_B[chosen_K], luck_B2[chosen_K, 1]))
        return batch

    def skip(self, count: int, rng: np.random.Generator) -> None:
        """Advances the generator as `sample` does for `count` transitions."""
        self._draw_with_luck(count, rng)

    def _draw_with_luck(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draws places [B], and for each one the numbers that decide whether it gets another goal, and which, [B, 2].

        A transition's three numbers are drawn one after the other, so that batches drawn together equal single ones.
        With priorities, which allow single batches only, all places are drawn first.
        """
        if self.priorities is not None:
            return self._draw(count, rng), rng.random((count, 2))
        luck_B3 = rng.random((count, 3))
        return (luck_B3[:, 0] * self.size).astype(np.int64), luck_B3[:, 1:]

    def _replace_goals(self, batch: ReplayBatch, chosen_K: NDArray[Any], later_K: NDArray[np.int64]) -> None:
        """Gives some transitions of a batch the goals that the transitions at `later_K` achieved."""
        goals_KG = self._achieved_G[later_K]
        achieved_KG = self._vector(batch.next_obs)[chosen_K, self._goals.achieved]
        rewards_K, terminated_K = self._compute_rewards(achieved_KG, goals_KG)
        for observations in (batch.obs, batch.next_obs):
            self._vector(observations)[chosen_K, self._goals.desired] = goals_KG
        batch.rewards[chosen_K] = rewards_K
        batch.discounts[chosen_K] = self._gammas[1] * ~terminated_K

    def _vector(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        vector = self._encoder.vector(observations)
        assert vector is not None
        return vector
