"""A replay buffer: stores the latest transitions of all environments, and samples batches of them.

Shapes: R rows (vector steps), N environments, B batch, M observations between n steps, O observation dims, A action
dims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.arrays import view_without_records
from rl_training.data.priorities import Priorities

COMPUTED_AHEAD = frozenset({"targets", "next_outputs"})
"""The fields of a batch that are not replayed but computed from weights."""


@dataclass(frozen=True)
class ReplayBatch:
    """Transitions drawn from a buffer. The target of a value is always `rewards + discounts * V(next_obs)`.

    The next sample overwrites the arrays, which belong to the buffer.
    """

    obs: NDArray[Any]
    """[B, *O] the observations that were acted on."""
    actions: NDArray[Any]
    """[B, *A] the actions."""
    rewards: NDArray[np.float32]
    """[B] the discounted sum of the rewards of up to `n_step` steps."""
    next_obs: NDArray[Any]
    """[B, *O] the observations after the last of these steps."""
    discounts: NDArray[np.float32]
    """[B] gamma to the power of the number of these steps; 0 if the last one terminated the episode."""
    middle_obs: NDArray[Any] | None = None
    """[n_step - 1, B, *O] the observations between these steps, first the one after the first step; None unless the
    buffer is told to return them."""
    middle_discounts: NDArray[np.float32] | None = None
    """[n_step - 1, B] gamma to the power of the number of steps before each of them; 0 if there are fewer steps."""
    targets: NDArray[np.float32] | None = None
    """[B, ...] the targets of the values, if the algorithm computed them ahead of the update."""
    next_outputs: NDArray[np.float32] | None = None
    """[B, K, ...] the target network's outputs for `next_obs`, if the algorithm computed these ahead instead."""
    places: NDArray[np.int64] | None = None
    """[B] the places of the transitions in the ring; None unless the buffer has priorities."""
    priorities: NDArray[np.float64] | None = None
    """[B] the priorities that the transitions were drawn by; None unless the buffer has priorities."""

    def __len__(self) -> int:
        return len(self.rewards)

    def select(self, rows: slice) -> ReplayBatch:
        """Returns some of the transitions, which share the memory of all of them."""
        middle_obs, middle_discounts = self.middle_obs, self.middle_discounts
        targets, next_outputs = self.targets, self.next_outputs
        places, priorities = self.places, self.priorities
        return ReplayBatch(
            self.obs[rows],
            self.actions[rows],
            self.rewards[rows],
            self.next_obs[rows],
            self.discounts[rows],
            None if middle_obs is None else middle_obs[:, rows],
            None if middle_discounts is None else middle_discounts[:, rows],
            None if targets is None else targets[rows],
            None if next_outputs is None else next_outputs[rows],
            None if places is None else places[rows],
            None if priorities is None else priorities[rows],
        )

    def copy(self) -> ReplayBatch:
        """Returns the transitions in memory of their own, which no sample overwrites."""
        return replace(self, **{name: array.copy() for name, array in vars(self).items() if array is not None})


class ReplayBuffer:
    """A preallocated ring of the latest `capacity` transitions; each row holds one step of all N environments.

    Row r holds the latest of the vector steps r, r + R, r + 2R, ... of the run. Observations keep their dtype: pixels
    stay bytes.

    Args:
        capacity: Number of transitions over all environments; a multiple of `num_envs`.
        num_envs: Number of environments (N).
        observation_shape: Shape of one observation.
        observation_dtype: Dtype of one observation.
        action_shape: Shape of one action of the policy.
        action_dtype: Dtype of one action.
        n_step: Maximum number of steps that a sampled transition spans.
        gamma: Discount factor of a step.
        returns_middle: Whether batches have the observations between these steps.

    Attributes:
        priorities: Priorities of the transitions, to draw in proportion to them; None, at first, draws uniformly.
        obs: Observations that were acted on, [R, N, *O].
        next_obs: Observations that followed, final ones if the episode ended, [R, N, *O].
        actions: Actions, [R, N, *A].
        rewards: Unscaled rewards, float32 [R, N].
        terminated: Whether the step ended the episode in a terminal state, bool [R, N].
        truncated: Whether the step cut the episode, bool [R, N].
        nbytes: Total size of these arrays in bytes.
        total: Number of transitions ever added. The transitions of a run are numbered in this order, from 0.
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
        returns_middle: bool = False,
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
        self.priorities: Priorities | None = None
        self._flat = {name: array.reshape(capacity, *array.shape[2:]) for name, array in self.arrays().items()}
        self.nbytes = sum(array.nbytes for array in self._flat.values())
        self._gammas = (gamma ** np.arange(n_step + 1)).astype(np.float32)
        self._returns_middle = returns_middle and n_step > 1
        self._batch = self._empty_batch(0)

    @property
    def size(self) -> int:
        """Number of transitions in the buffer."""
        return min(self.total, self.capacity)

    @property
    def oldest(self) -> int:
        """Number, within the run, of the oldest transition in the buffer."""
        return self.total - self.size

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays of the ring by name, [R, N, ...] each."""
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
        """Stores a copy of one step of all environments, and overwrites the oldest step if the ring is full."""
        row = self.total // self.num_envs % len(self.rewards)
        self.obs[row], self.actions[row], self.rewards[row] = obs, actions, rewards
        self.next_obs[row], self.terminated[row], self.truncated[row] = next_obs, terminated, truncated
        self.total += self.num_envs
        if self.priorities is not None:
            self.priorities.add(row * self.num_envs, self.num_envs)

    def cut_newest(self, env_indices: Sequence[int]) -> None:
        """Marks the newest transition of some environments as truncated, because another episode follows."""
        if self.total:
            self.truncated[(self.total // self.num_envs - 1) % len(self.rewards), list(env_indices)] = True

    def sample(self, batch_size: int, rng: np.random.Generator) -> ReplayBatch:
        """Draws transitions uniformly, or in proportion to their priorities, with replacement.

        A transition spans up to `n_step` steps of its environment. It is shorter at the end of an episode, either way,
        and at the newest step in the buffer; its discount matches the number of its rewards.

        Args:
            batch_size: Number of transitions (B).
            rng: Generator of the draws, which is advanced.

        Raises:
            ValueError: The buffer is empty.

        Source: Mnih et al. 2015, algorithm 1 (uniform replay); Sutton and Barto 2018, section 7.1 (n-step returns).
        """
        return self._gather(self._draw(batch_size, rng))

    def skip(self, count: int, rng: np.random.Generator) -> None:
        """Advances the generator as `sample` does for `count` transitions."""
        self._draw(count, rng)

    def rows(self, first: int, count: int) -> slice:
        """Returns the rows of the ring that hold `count` transitions from `first` on.

        Args:
            first: Number of the first transition, a multiple of N.
            count: Number of transitions, a multiple of N.

        Raises:
            ValueError: These are not complete rows, or they extend past the end of the ring.
        """
        start = first // self.num_envs % len(self.rewards)
        stop = start + count // self.num_envs
        if first % self.num_envs or count % self.num_envs or stop > len(self.rewards):
            raise ValueError(
                f"transitions {first} to {first + count} are not complete rows, or extend past the end of the ring"
            )
        return slice(start, stop)

    def copy_rows(self, first: int, count: int) -> dict[str, NDArray[Any]]:
        """Returns copies of these transitions by name, [count / N, N, ...]; records (mixed observations) as bytes.

        Another thread may call this method while steps are added that don't overwrite these transitions.
        """
        rows = self.rows(first, count)
        return {name: view_without_records(array[rows].copy()) for name, array in self.arrays().items()}

    def fill_rows(self, first: int, count: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restores transitions to the rows that they had.

        Args:
            first: Number of the first transition.
            count: Number of transitions.
            arrays: The arrays that `copy_rows` returned for these transitions, from a buffer like this one.

        Raises:
            ValueError: The arrays have other names, shapes or dtypes, or these are not complete rows.
        """
        rows = self.rows(first, count)
        if arrays.keys() != self.arrays().keys():
            raise ValueError(f"it holds {', '.join(sorted(arrays))}, and the buffer {', '.join(sorted(self.arrays()))}")
        targets = {name: view_without_records(array[rows]) for name, array in self.arrays().items()}
        for name, target in targets.items():
            got = arrays[name]
            if (got.shape, got.dtype) != (target.shape, target.dtype):
                raise ValueError(
                    f"{name} is {got.dtype} {got.shape}, and the buffer's is {target.dtype} {target.shape}"
                )
        for name, target in targets.items():
            target[:] = arrays[name]

    def _draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Returns the places in the ring of the first steps of `count` transitions."""
        if self.priorities is None:
            return rng.integers(self.size, size=count)
        return self.priorities.draw(count, self.size, rng)

    def _gather(self, first_B: NDArray[np.int64]) -> ReplayBatch:
        """Returns the transitions that begin at these places."""
        if len(first_B) != len(self._batch):
            self._batch = self._empty_batch(len(first_B))
        batch = self._batch
        self._take("rewards", first_B, batch.rewards)
        last_B, steps_B = self._follow(first_B, batch) if self.n_step > 1 else (first_B, 1)
        np.multiply(self._gammas[steps_B], ~self._flat["terminated"][last_B], out=batch.discounts)
        self._take("obs", first_B, batch.obs)
        self._take("actions", first_B, batch.actions)
        self._take("next_obs", last_B, batch.next_obs)
        if self.priorities is None:
            return batch
        return replace(batch, places=first_B, priorities=self.priorities.read(first_B))

    def _follow(self, first_B: NDArray[np.int64], batch: ReplayBatch) -> tuple[NDArray[Any], NDArray[Any]]:
        """Adds later steps to the batch's rewards and middle; returns each transition's last step and step count."""
        newest_row = (self.total // self.num_envs - 1) % len(self.rewards)
        last_B, steps_B = first_B, np.ones(len(first_B), np.int64)
        for k in range(1, self.n_step):
            ended_B = self._flat["terminated"][last_B] | self._flat["truncated"][last_B]
            goes_on_B = (steps_B == k) & ~ended_B & (last_B // self.num_envs != newest_row)
            last_B = np.where(goes_on_B, (last_B + self.num_envs) % self.capacity, last_B)
            batch.rewards[:] += self._gammas[k] * np.where(goes_on_B, self._flat["rewards"][last_B], np.float32(0))
            steps_B += goes_on_B
            if batch.middle_obs is not None and batch.middle_discounts is not None:
                self._take("obs", last_B, batch.middle_obs[k - 1])
                np.multiply(self._gammas[k], goes_on_B, out=batch.middle_discounts[k - 1])
        return last_B, steps_B

    def _take(self, name: str, index_B: NDArray[np.int64], out: NDArray[Any]) -> None:
        np.take(
            self._flat[name], index_B, axis=0, out=out, mode="clip"
        )  # the default mode "raise" would copy through a temporary buffer

    def _empty_batch(self, batch_size: int) -> ReplayBatch:
        def like(array: NDArray[Any]) -> NDArray[Any]:
            return np.empty((batch_size, *array.shape[2:]), array.dtype)

        rewards, discounts = like(self.rewards), like(self.rewards)
        batch = ReplayBatch(like(self.obs), like(self.actions), rewards, like(self.next_obs), discounts)
        if not self._returns_middle:
            return batch
        shape = (self.n_step - 1, batch_size)
        middle_obs = np.empty((*shape, *self.obs.shape[2:]), self.obs.dtype)
        return replace(batch, middle_obs=middle_obs, middle_discounts=np.empty(shape, np.float32))
