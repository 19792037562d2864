"""A policy to act with, as `rl_training.load_policy` returns it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from rl_training.envs.space_leaves import list_leaves
from rl_training.errors import UserError, one_line
from rl_training.runtime.policy import Policy
from rl_training.runtime.recurrent_policy import Memory, RecurrentPolicy


class LoadedPolicy:
    """A policy to act with, for one observation or for many.

    Args:
        policy: The policy.
        algorithm: The name of its algorithm.

    Attributes:
        observation_space: The space of an observation.
        action_space: The space of an action.
    """

    def __init__(self, policy: Policy, algorithm: str) -> None:
        self.observation_space, self.action_space = policy.observation_space, policy.action_space
        self._policy, self._algorithm = policy, algorithm
        self._rng = np.random.default_rng()

    def seed(self, seed: int | None = None) -> None:
        """Seeds the generator of `act(..., deterministic=False)`; without a seed, the draws differ each time."""
        self._rng = np.random.default_rng(seed)

    def act(self, observation: Any, deterministic: bool = True) -> Any:
        """Returns the action for an observation, or the actions for several.

        The action for an observation does not depend on the others: together they are the same to the last bit as one
        by one.

        Args:
            observation: An observation as the environment returns it; a batch of N as a vector environment returns it,
                [N, *observation], for `Dict` and `Tuple` spaces in each leaf; or a list of observations.
            deterministic: Whether to act greedily. Otherwise PPO, SAC and TQC draw from their distributions, TD3 adds
                its noise, and DQN takes a random action with the probability `exploration.end`.

        Returns:
            An action as `env.step` takes it; for a batch an array [N, *action]; for a list a list.

        Raises:
            UserError: The observation does not fit the space, the algorithm has no way to draw actions, or the policy
                has a memory, so that it acts in episodes alone; see `begin_episode`.
        """
        if isinstance(observation, list):
            return self._act_on_each(observation, deterministic)
        count = self._count(observation)
        if count is None:
            return self._act_on_each([observation], deterministic)[0]
        rows = list(iterate(batch_space(self.observation_space, count), observation))
        return np.stack(self._act_on_each(rows, deterministic))

    def begin_episode(self) -> LoadedEpisode:
        """Returns an episode to act in; a policy with a memory acts only in episodes."""
        return LoadedEpisode(self)

    def __repr__(self) -> str:
        return f"<policy of {self._algorithm}: {self.observation_space} -> {self.action_space}>"

    def _act_on_each(self, observations: list[Any], deterministic: bool) -> list[Any]:
        if not observations or self._count(observations[0]) is not None:
            raise UserError(
                f"got {one_line(observations, repr)}, expected at least one observation of {self.observation_space}; "
                f"a list holds complete observations, so pass a single one as an array"
            )
        if deterministic or isinstance(self._policy, RecurrentPolicy):  # which refuses, and says why
            return self._policy.act(observations)
        sample = getattr(self._policy, "sample", None)
        if sample is None:
            raise UserError(
                f"algorithm {self._algorithm} can't draw actions, because its policy has no "
                f"sample(observations, rng); use deterministic=True"
            )
        actions: list[Any] = sample(observations, self._rng)
        return actions

    def _count(self, observation: Any) -> int | None:
        """Returns the number of observations in a batch; None for a single observation."""
        sizes = set()
        for leaf in list_leaves(self.observation_space):
            try:
                shape = np.shape(leaf.pick(observation))
            except (KeyError, IndexError, TypeError, ValueError):
                raise UserError(
                    f"got {one_line(observation, repr)}, expected an observation of {self.observation_space}"
                ) from None
            own = leaf.space.shape or ()
            if shape not in (own, (*shape[:1], *own)):
                name = f"{leaf.name}: " if leaf.name else ""
                batch = f"({', '.join(map(str, ('N', *own)))})"
                raise UserError(
                    f"{name}got an observation of shape {shape}, expected {own}, or {batch} for a batch of N"
                )
            sizes.add(None if shape == own else shape[0])
        if len(sizes) > 1:
            raise UserError(
                f"got parts of batch sizes {', '.join(sorted(map(str, sizes)))}; expected the same number of "
                f"observations in each part of {self.observation_space}"
            )
        return sizes.pop()

    def _act_in_episode(
        self, observation: Any, memory: Memory | None, deterministic: bool
    ) -> tuple[Any, Memory | None]:
        """Returns the action for the newest observation of an episode, and the episode's memory if there is one."""
        if not isinstance(self._policy, RecurrentPolicy):
            return self.act(observation, deterministic), None
        if self._count(observation) is not None:
            raise UserError(
                f"got a batch of observations, expected one of {self.observation_space}; begin an episode for each"
            )
        rng = None if deterministic else self._rng
        (action,), (after,) = self._policy.act_in_episodes([observation], [memory], rng)
        return action, after


class LoadedEpisode:
    """An episode that a policy acts in, with its memory if it has one.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: LoadedPolicy) -> None:
        self._policy = policy
        self._memory: Memory | None = None

    def act(self, observation: Any, deterministic: bool = True) -> Any:
        """Returns the action for the episode's newest observation; every observation is passed once and in order.

        Args:
            observation: An observation as the environment returns it.
            deterministic: Whether to act greedily; see `LoadedPolicy.act`.

        Raises:
            UserError: The observation does not fit the space, or the algorithm has no way to draw actions.
        """
        action, self._memory = self._policy._act_in_episode(observation, self._memory, deterministic)
        return action
