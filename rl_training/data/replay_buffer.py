"""The latest transitions of all environments, to sample from.

Shapes: R rows (vector steps), N environments, B batch, O observation dims, A action dims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.arrays import without_records


@dataclass(frozen=True)
class ReplayBatch:
    """Transitions drawn from a buffer. The target of a value is always `rewards + discounts * V(next_obs)`.

    The arrays are the buffer's own and are overwritten by the next sample.
    """

    obs: NDArray[Any]
    """[B, *O]."""
    actions: NDArray[Any]
    """[B, *A]."""
    rewards: NDArray[np.float32]
    """[B], the discounted sum of the rewards of up to `n_step` steps."""
    next_obs: NDArray[Any]
    """[B, *O], after the last of these steps."""
    discounts: NDArray[np.float32]
    """[B], gamma to the power of their number; 0 where the last one terminated the episode."""

    def __len__(self) -> int:
        return len(self.rewards)


class ReplayBuffer:
    """A preallocated ring of the latest `capacity` transitions, in rows of one step of all N environments.

    Row r holds the vector steps r, r + R, r + 2R, ... of the run, the latest of them. Observations keep their dtype:
    pixels stay bytes.

    Args:
        capacity: Transitions over all environments; a multiple of `num_envs`.
        num_envs: N.
        observation_shape: Of one observation.
        observation_dtype: Of one observation.
        action_shape: Of one action, as the policy gives it.
        action_dtype: Of one action.
        n_step: Steps that a sampled transition spans at most.
        gamma: Discount of a step.

    Attributes:
        obs: Observations that were acted on, [R, N, *O].
        next_obs: What followed, the true final observation where the episode ended, [R, N, *O].
        actions: [R, N, *A].
        rewards: The environments' own, float32 [R, N].
        terminated: bool [R, N].
        truncated: bool [R, N].
        nbytes: Bytes of these arrays.
        total: Transitions ever added. The transitions of a run are numbered in this order, from 0.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype[Any],
        action_shape: tuple[int, ...],
        action_dtype: np.dtype[Any],
        n_step: int = 1,
        gamma: float = 0.99,
    ) -> None:
        if capacity < num_envs or capacity % num_envs:
            raise ValueError(f"a buffer of {capacity} transitions can't be filled in whole steps of {num_envs}")
        size = (capacity // num_envs, num_envs)
        self.capacity, self.num_envs, self.n_step = capacity, num_envs, n_step
        self.obs, self.next_obs = (np.zeros((*size, *observation_shape), observation_dtype) for _ in range(2))
        self.actions = np.zeros((*size, *action_shape), action_dtype)
        self.rewards = np.zeros(size, np.float32)
        self.terminated, self.truncated = np.zeros(size, bool), np.zeros(size, bool)
        self.total = 0
        self._flat = {name: array.reshape(capacity, *array.shape[2:]) for name, array in self.arrays().items()}
        self.nbytes = sum(array.nbytes for array in self._flat.values())
        self._gammas = (gamma ** np.arange(n_step + 1)).astype(np.float32)
        self._batch = self._empty_batch(0)

    @property
    def size(self) -> int:
        """Transitions held."""
        return min(self.total, self.capacity)

    @property
    def oldest(self) -> int:
        """Number of the oldest transition that is held."""
        return self.total - self.size

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the ring's arrays by name, [R, N, ...]."""
        names = ("obs", "next_obs", "actions", "rewards", "terminated", "truncated")
        return {name: getattr(self, name) for name in names}

    def add(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        next_obs: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Stores a copy of one step of all environments, over the oldest one where the ring is full.

        Args:
            obs: What was acted on, [N, *O].
            actions: [N, *A].
            rewards: [N].
            next_obs: What followed; the episode's final observation where it ended, [N, *O].
            terminated: The step ended the episode, bool [N].
            truncated: The step cut the episode, bool [N].
        """
        row = self.total // self.num_envs % len(self.rewards)
        self.obs[row], self.actions[row], self.rewards[row] = obs, actions, rewards
        self.next_obs[row], self.terminated[row], self.truncated[row] = next_obs, terminated, truncated
        self.total += self.num_envs

    def cut_newest(self, env_indices: Sequence[int]) -> None:
        """Marks the newest transition of some environments as cut, where their next one begins another episode."""
        if self.total:
            self.truncated[(self.total // self.num_envs - 1) % len(self.rewards), list(env_indices)] = True

    def sample(self, batch_size: int, rng: np.random.Generator) -> ReplayBatch:
        """Draws transitions uniformly, with replacement.

        A transition spans up to `n_step` steps of its environment. It is cut where the episode ended, either way, and
        at the newest step held: it then has fewer rewards, and the value after its last step is discounted by their
        number.

        Args:
            batch_size: B.
            rng: Decides what is drawn, and is advanced.

        Raises:
            ValueError: The buffer is empty.

        Source: Mnih et al. 2015, algorithm 1 (uniform replay); Sutton and Barto 2018, section 7.1 (n-step returns).
        """
        first_B = rng.integers(self.size, size=batch_size)
        if batch_size != len(self._batch):
            self._batch = self._empty_batch(batch_size)
        batch = self._batch
        self._take("rewards", first_B, batch.rewards)
        last_B, steps_B = self._follow(first_B, batch.rewards) if self.n_step > 1 else (first_B, 1)
        np.multiply(self._gammas[steps_B], ~self._flat["terminated"][last_B], out=batch.discounts)
        self._take("obs", first_B, batch.obs)
        self._take("actions", first_B, batch.actions)
        self._take("next_obs", last_B, batch.next_obs)
        return batch

    def rows(self, first: int, count: int) -> slice:
        """Returns the rows of the ring that have the transitions `first` to `first + count`.

        Args:
            first: Number of a transition, a multiple of N.
            count: Likewise; the rows must not lead over the ring's end.
        """
        start = first // self.num_envs % len(self.rewards)
        stop = start + count // self.num_envs
        if first % self.num_envs or count % self.num_envs or stop > len(self.rewards):
            raise ValueError(f"transitions {first} to {first + count} are no whole rows, or lead over the ring's end")
        return slice(start, stop)

    def copy_rows(self, first: int, count: int) -> dict[str, NDArray[Any]]:
        """Returns copies of these transitions, by name, [count / N, N, ...]; records (mixed observations) as bytes.

        Another thread may call it while steps are added that don't overwrite these.
        """
        rows = self.rows(first, count)
        return {name: without_records(array[rows].copy()) for name, array in self.arrays().items()}

    def fill_rows(self, first: int, count: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Puts transitions into the places that they had.

        Args:
            first: Number of the first one.
            count: How many there are.
            arrays: What `copy_rows` returned for them, of a buffer like this one.

        Raises:
            ValueError: They are of another form, or have other places.
        """
        rows = self.rows(first, count)
        if arrays.keys() != self.arrays().keys():
            raise ValueError(f"it holds {', '.join(sorted(arrays))}, and the buffer {', '.join(sorted(self.arrays()))}")
        targets = {name: without_records(array[rows]) for name, array in self.arrays().items()}
        for name, target in targets.items():
            got = arrays[name]
            if (got.shape, got.dtype) != (target.shape, target.dtype):
                raise ValueError(
                    f"{name} is {got.dtype} {got.shape}, and the buffer's is {target.dtype} {target.shape}"
                )
        for name, target in targets.items():
            target[:] = arrays[name]

    def _follow(self, first_B: NDArray[np.int64], sums_B: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Adds the rewards of the steps after the first to the sums; returns the last steps and how many there are."""
        newest_row = (self.total // self.num_envs - 1) % len(self.rewards)
        last_B, steps_B = first_B, np.ones(len(first_B), np.int64)
        for k in range(1, self.n_step):
            ended_B = self._flat["terminated"][last_B] | self._flat["truncated"][last_B]
            goes_on_B = (steps_B == k) & ~ended_B & (last_B // self.num_envs != newest_row)
            last_B = np.where(goes_on_B, (last_B + self.num_envs) % self.capacity, last_B)
            sums_B += self._gammas[k] * np.where(goes_on_B, self._flat["rewards"][last_B], np.float32(0))
            steps_B += goes_on_B
        return last_B, steps_B

    def _take(self, name: str, index_B: NDArray[np.int64], out: NDArray[Any]) -> None:
        np.take(self._flat[name], index_B, axis=0, out=out, mode="clip")  # `raise` would copy through a buffer

    def _empty_batch(self, batch_size: int) -> ReplayBatch:
        def like(array: NDArray[Any]) -> NDArray[Any]:
            return np.empty((batch_size, *array.shape[2:]), array.dtype)

        rewards, discounts = like(self.rewards), like(self.rewards)
        return ReplayBatch(like(self.obs), like(self.actions), rewards, like(self.next_obs), discounts)
