"""Policies that remember the episode so far, and acting in episodes with any policy.

A policy itself stays without state: it takes the memory of each episode and returns it with the newest observation.
Whoever plays episodes keeps their memories, with an `EpisodeActor`.

Shapes: N observations, P parts of a memory, H units of a recurrent layer, K parameters of a distribution of actions.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import UserError
from rl_training.runtime.policy import BLOCK, Policy, pad_to_blocks

Memory = npt.NDArray[np.float32]
"""What a policy remembers of an episode, float32 [P, H]."""


@runtime_checkable
class Remembers(Protocol):
    """An algorithm whose policy has a memory."""

    def empty_memories(self, count: int) -> npt.NDArray[np.float32]:
        """Returns the memories before the first observation of episodes, [count, P, H]."""

    def remember(
        self, observation: npt.NDArray[Any], memories: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Returns what the actions depend on, [N, K], and the memories [N, P, H] with these observations [N, *O]."""

    def choose_best(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the best policy-side actions [N, *A] for such outputs."""

    def draw_actions(self, outputs: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Draws policy-side actions [N, *A] for such outputs."""


@dataclass(kw_only=True, eq=False)
class RecurrentPolicy:
    """The policy of a network with a memory, with fixed observation statistics.

    Several threads may call it at the same time.
    """

    encoder: ObservationEncoder
    normalizer: ObservationNormalizer | None
    """The observation statistics, which are not updated; None without normalisation."""
    algorithm: Remembers
    codec: ActionCodec
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def act(self, observations: Sequence[Any]) -> NoReturn:
        """Refuses, because an action depends on the observations before.

        Raises:
            UserError: Always.
        """
        raise UserError(
            "got observations without their episodes, and the policy has a memory of the episode so far; call "
            "begin_episode() of a loaded policy, and act() of the episode that it returns"
        )

    def act_in_episodes(
        self, observations: Sequence[Any], memories: Sequence[Memory | None], rng: np.random.Generator | None = None
    ) -> tuple[list[Any], list[Memory]]:
        """Returns an action for the newest observation of each episode; it depends on no other episode.

        Args:
            observations: The observations, as the environment returns them.
            memories: What this method returned after the observation before; None at the first one of an episode.
            rng: Draws the actions, one episode after the other; None chooses the best ones.

        Returns:
            The actions, as `step` of the environment takes them, and the memories of the episodes.
        """
        encoded = self.encoder.encode_list(observations)  # [N, *O]
        if self.normalizer is not None:
            encoded = self.normalizer.normalize(encoded)
        (empty,) = self.algorithm.empty_memories(1)
        before = np.stack([empty if memory is None else memory for memory in memories])  # [N, P, H]
        count, encoded, before = len(encoded), pad_to_blocks(encoded), pad_to_blocks(before)
        with self._one_at_a_time:
            blocks = [
                self.algorithm.remember(encoded[i : i + BLOCK], before[i : i + BLOCK]) for i in range(0, count, BLOCK)
            ]
        outputs, after = (np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True))
        if rng is None:
            actions = self.algorithm.choose_best(outputs)
        else:
            actions = np.concatenate([self.algorithm.draw_actions(outputs[i : i + 1], rng) for i in range(count)])
        return list(self.codec.to_env(actions)), list(after)


class EpisodeActor:
    """Acts in episodes that are played side by side, with the memory of each if the policy has one.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._memories: Mapping[Hashable, Memory] = {}

    def act(self, episodes: Sequence[Hashable], observations: Sequence[Any]) -> list[Any]:
        """Returns the greedy action for the newest observation of each episode.

        Args:
            episodes: A name for each episode. An episode that the last call did not name begins now.
            observations: The observations, as the environment returns them.
        """
        if not isinstance(self._policy, RecurrentPolicy):
            return self._policy.act(observations)
        memories = [self._memories.get(episode) for episode in episodes]
        actions, memories_after = self._policy.act_in_episodes(observations, memories)
        self._memories = dict(zip(episodes, memories_after, strict=True))
        return actions
