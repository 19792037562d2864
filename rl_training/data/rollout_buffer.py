"""A rollout buffer: stores the transitions of one rollout, and computes their advantages.

Shapes: T steps, S of them, N environments, B batch, O observation dims, A action dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_training.data.arrays import view_without_records
from rl_training.errors import CheckpointError
from rl_training.state_checks import Count, require_same_form, validate


@dataclass(frozen=True)
class Minibatch:
    """A minibatch of transitions, with step and environment flattened into one axis."""

    obs: np.ndarray
    """[B, *O] the observations that were acted on."""
    actions: np.ndarray
    """[B, *A] the actions."""
    logprobs: np.ndarray
    """float32 [B] log-probabilities of the actions under the policy that acted."""
    values: np.ndarray
    """float32 [B] values of the observations at the time of acting."""
    advantages: np.ndarray
    """float32 [B] advantages."""
    returns: np.ndarray
    """float32 [B] targets of the value function."""

    def __len__(self) -> int:
        return len(self.actions)


class RolloutBuffer:
    """Preallocated arrays for T steps of N environments.

    Attributes:
        obs: Observations that were acted on, [T, N, *O].
        actions: Actions that the policy drew, unclipped, [T, N, *A].
        rewards: Rewards, float32 [T, N].
        dones: Whether the step terminated or truncated the episode, bool [T, N].
        terminated: Whether the step ended the episode in a terminal state, bool [T, N].
        values: V(obs), float32 [T, N].
        logprobs: Log-probabilities of the actions, float32 [T, N].
        final_values: V(final observation) if an episode was truncated and not terminated, else 0, float32 [T, N].
        advantages: Advantages, float32 [T, N]; set by `compute_returns_and_advantages`.
        returns: Advantages + values, float32 [T, N]; set by `compute_returns_and_advantages`.
        position: Number of steps stored.
        steps: Number of steps of the complete rollout.
    """

    def __init__(
        self,
        rollout_steps: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype[Any],
        action_shape: tuple[int, ...],
        action_dtype: np.dtype[Any],
    ) -> None:
        size = (rollout_steps, num_envs)
        self.rollout_steps, self.num_envs = size
        self.obs = np.zeros((*size, *observation_shape), observation_dtype)
        self.actions = np.zeros((*size, *action_shape), action_dtype)
        self.dones, self.terminated = np.zeros(size, bool), np.zeros(size, bool)
        self.rewards, self.values, self.logprobs, self.final_values, self.advantages, self.returns = (
            np.zeros(size, np.float32) for _ in range(6)
        )
        self.position, self.steps = 0, rollout_steps

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.position == self.steps

    @property
    def num_transitions(self) -> int:
        """Number of transitions stored so far."""
        return self.position * self.num_envs

    def reset(self, steps: int | None = None) -> None:
        """Begins a new rollout.

        Args:
            steps: Length of the rollout, at most T; T by default. The last rollout of a run may be shorter.

        Raises:
            ValueError: The length is not between 1 and T.
        """
        steps = self.rollout_steps if steps is None else steps
        if not 1 <= steps <= self.rollout_steps:
            raise ValueError(f"a rollout of {steps} steps does not fit a buffer of {self.rollout_steps}")
        self.position, self.steps = 0, steps
        for ends in (self.terminated, self.dones, self.final_values):  # once, rather than at each step
            ends[:] = 0

    def add(
        self,
        obs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        values: np.ndarray,
        logprobs: np.ndarray,
        final_values: np.ndarray,
    ) -> None:
        """Stores a copy of one step of all environments, of which everything is known.

        Args:
            obs: Observations that were acted on, [N, *O].
            actions: Actions, [N, *A].
            rewards: Rewards, [N].
            terminated: Whether the step ended the episode in a terminal state, bool [N].
            truncated: Whether the step cut the episode, bool [N].
            values: V(obs), [N].
            logprobs: Log-probabilities of the actions, [N].
            final_values: V(final observation of the episode), [N]; read only if truncated and not terminated.

        Raises:
            ValueError: The rollout is complete.
        """
        self.add_step(obs, actions, rewards)
        self.end_episodes(terminated, truncated, final_values)
        self.store_estimates(values[None], logprobs[None])

    def add_step(self, obs: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> None:
        """Stores a copy of one step of all environments, of which none has ended an episode yet.

        Args:
            obs: Observations that were acted on, [N, *O].
            actions: Actions, [N, *A].
            rewards: Rewards, [N].

        Raises:
            ValueError: The rollout is complete.
        """
        t = self.position
        if t == self.steps:
            raise ValueError(f"the rollout is full with {t} steps; reset the buffer first")
        self.obs[t], self.actions[t], self.rewards[t] = obs, actions, rewards
        self.position = t + 1

    def end_episodes(self, terminated: np.ndarray, truncated: np.ndarray, final_values: np.ndarray | None) -> None:
        """Stores which episodes the newest step has ended.

        Args:
            terminated: Whether the step ended the episode in a terminal state, bool [N].
            truncated: Whether the step cut the episode, bool [N].
            final_values: V(final observation of the episode), [N]; read only if truncated and not terminated, and None
                if no episode was truncated.
        """
        t = self.position - 1
        self.terminated[t], self.dones[t] = terminated, terminated | truncated
        if final_values is not None:
            self.final_values[t] = np.where(truncated & ~terminated, final_values, 0.0)

    def store_estimates(self, values: np.ndarray, logprobs: np.ndarray) -> None:
        """Stores V(obs) and the log-probabilities of the actions in the newest S steps, [S, N] each."""
        newest = slice(self.position - len(values), self.position)
        self.values[newest], self.logprobs[newest] = values, logprobs

    def cut_newest(self, env_indices: Sequence[int], final_values: np.ndarray) -> None:
        """Marks the newest step of some environments as the end of an episode, because another episode follows.

        Args:
            env_indices: Indices of the environments.
            final_values: V(observation after the newest step), [N].
        """
        t = self.position - 1
        cut_N = np.isin(np.arange(self.num_envs), env_indices) & ~self.dones[t]
        self.dones[t] |= cut_N
        self.final_values[t] = np.where(cut_N, final_values, self.final_values[t])

    def compute_returns_and_advantages(self, last_values: np.ndarray, gamma: float, gae_lambda: float) -> None:
        """Computes advantages by generalized advantage estimation (GAE), and returns.

        The value of the next state counts unless the episode terminated: at a truncation it is the value of the final
        observation, at the end of the rollout it is `last_values`. The recursion stops at the end of an episode, either
        way.

        Args:
            last_values: V(observation after the last step), [N]; not read if the last step ended an episode.
            gamma: Discount factor.
            gae_lambda: Lambda of GAE.

        Source: Schulman et al. 2016 (GAE), equation 16; Pardo et al. 2018, section 3 (truncation).
        """
        t_end = self.position
        values_TN, dones_TN = self.values[:t_end], self.dones[:t_end]
        next_values_TN = np.concatenate([values_TN[1:], np.asarray(last_values, np.float32)[None]])
        next_values_TN = np.where(dones_TN, self.final_values[:t_end], next_values_TN)
        deltas_TN = self.rewards[:t_end] + np.float32(gamma) * next_values_TN - values_TN
        decay_TN = np.float32(gamma * gae_lambda) * ~dones_TN
        advantage_N = np.zeros(self.num_envs, np.float32)
        steps = zip(deltas_TN[::-1], decay_TN[::-1], self.advantages[t_end - 1 :: -1], strict=True)
        for delta_N, decay_N, out_N in steps:
            np.multiply(decay_N, advantage_N, out=out_N)
            out_N += delta_N
            advantage_N = out_N
        np.add(self.advantages[:t_end], values_TN, out=self.returns[:t_end])

    def draw_order(self, rng: np.random.Generator) -> np.ndarray:
        """Returns a random order of the transitions for `iter_minibatches`, int64 [T * N]."""
        return rng.permutation(self.num_transitions)

    def iter_minibatches(self, batch_size: int, order: np.ndarray) -> Iterator[Minibatch]:
        """Yields minibatches of copies of the transitions in a given order; the last one may be smaller.

        Args:
            batch_size: Number of transitions per minibatch.
            order: Indices of transitions, step * N + environment: a permutation, or the rest of one.
        """
        return self.select(order[start : start + batch_size] for start in range(0, len(order), batch_size))

    def select(self, indices: Iterable[np.ndarray]) -> Iterator[Minibatch]:
        """Yields a minibatch of copies of the transitions at each array of indices, step * N + environment."""
        fields = (self.obs, self.actions, self.logprobs, self.values, self.advantages, self.returns)
        flat = [self._flat(field) for field in fields]
        for index in indices:
            yield Minibatch(*(field.take(index, axis=0) for field in flat))

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the stored steps as tensors."""
        tensors = {name: torch.from_numpy(array.copy()) for name, array in self._filled().items()}
        return {"position": self.position, "steps": self.steps, **tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned, in a buffer of the same shape.

        Raises:
            CheckpointError: The state has another shape.
        """
        steps, position = (validate(f"buffer/{name}", state[name], Count) for name in ("steps", "position"))
        if not 1 <= steps <= self.rollout_steps or position > steps:
            raise CheckpointError(f"buffer: {position} of {steps} steps do not fit a buffer of {self.rollout_steps}")
        self.reset(steps)
        self.position = position
        for name, own in self._filled().items():
            own[:] = require_same_form(f"buffer/{name}", state[name], torch.from_numpy(own)).numpy()

    def _flat(self, field: np.ndarray) -> np.ndarray:
        return field[: self.position].reshape(self.num_transitions, *field.shape[2:])

    def _filled(self) -> dict[str, np.ndarray]:
        """Returns views of the part of each array that is filled, by name; records (mixed observations) as bytes."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {name: view_without_records(array)[: self.position] for name, array in arrays.items()}
