"""Policies: from native observations to actions in the environment's units.

Shapes: N observations, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import EnvironmentRefused, UserError
from rl_training.state_checks import describe_lack

BLOCK = 8
"""The rows of each forward pass. BLAS rounds a row differently in batches of other sizes, so the size is fixed."""


class Policy(Protocol):
    """A greedy policy for one observation space and one action space."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations."""

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns an action for each observation.

        Args:
            observations: One observation of each environment, as the environment returns it.

        Returns:
            One action for each observation, as the environment's `step` takes it; it depends on no other observation.
        """


class HasSpaces(Protocol):
    """An environment, or anything else with its spaces."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations."""

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""


def require_same_spaces(policy: Policy, env: HasSpaces, env_id: str) -> None:
    """Checks that a policy fits an environment.

    Raises:
        EnvironmentRefused: A space differs.
    """
    for name in ("observation_space", "action_space"):
        needed, given = getattr(policy, name), getattr(env, name)
        if needed != given:
            raise EnvironmentRefused(
                f"the policy's {name} is {needed}, and environment {env_id!r} has {given}; evaluate a policy in the "
                f"environment that it was trained in"
            )


def require_policy(policy: Policy, algorithm: str) -> Policy:
    """Returns the policy of an algorithm, which may come from another package, if it has all parts.

    Raises:
        UserError: It lacks a part; the message names the algorithm.
    """
    for name in ("observation_space", "action_space", "act"):
        if not hasattr(policy, name):
            raise UserError(describe_lack(algorithm, f"its {type(policy).__name__} has no {name}"))
    return policy


def pad_to_blocks(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns rows [N, ...] followed by copies of the last one, so that their number is a multiple of `BLOCK`."""
    return np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % BLOCK, axis=0)])


@dataclass(kw_only=True, eq=False)
class GreedyPolicy:
    """The policy of a network, without exploration and with fixed observation statistics.

    Several threads may call it at the same time.
    """

    encoder: ObservationEncoder
    normalizer: ObservationNormalizer | None
    """The observation statistics, which are not updated; None without normalisation."""
    act_greedy: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    """Returns policy-side actions [N, *A] for encoded observations [N, *O]."""
    codec: ActionCodec
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns the greedy action of each observation; see `Policy.act`."""
        return list(self.codec.to_env(self._evaluate(self.act_greedy, observations)))

    def _evaluate(
        self, network: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], observations: Sequence[Any]
    ) -> npt.NDArray[Any]:
        """Returns what a function of encoded observations [N, *O] gives for each of these, block by block."""
        encoded = self.encoder.encode_list(observations)  # [N, *O]
        if self.normalizer is not None:
            encoded = self.normalizer.normalize(encoded)
        count, padded = len(encoded), pad_to_blocks(encoded)
        # the network may return memory that its next call overwrites
        with self._one_at_a_time:
            blocks = [np.array(network(padded[i : i + BLOCK])) for i in range(0, count, BLOCK)]
        return np.concatenate(blocks)[:count]


@runtime_checkable
class DrawsActions(Protocol):
    """An algorithm that can draw actions as in training, in two steps, with a given generator."""

    def policy_outputs(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns what the actions depend on, [N, K], for encoded observations [N, *O]."""

    def draw_actions(self, outputs: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Returns policy-side actions [N, *A] for such outputs."""


@dataclass(kw_only=True, eq=False)
class SamplingPolicy(GreedyPolicy):
    """A greedy policy that can draw actions too, for exploration or for a stochastic policy."""

    drawer: DrawsActions
    """The algorithm whose actions are drawn."""

    def sample(self, observations: Sequence[Any], rng: np.random.Generator) -> list[Any]:
        """Draws an action for each observation.

        The draws for several observations are those for one after the other, so every row is drawn by itself.
        """
        outputs = self._evaluate(self.drawer.policy_outputs, observations)  # [N, K]
        drawn = [self.drawer.draw_actions(outputs[i : i + 1], rng) for i in range(len(outputs))]
        return list(self.codec.to_env(np.concatenate(drawn)))


class CurrentPolicy:
    """The policy of a trainer as it is at each call.

    Args:
        get: Returns the current greedy policy.
    """

    def __init__(self, get: Callable[[], Policy]) -> None:
        self._get = get

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations."""
        return self._get().observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""
        return self._get().action_space

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns the greedy action of each observation; see `Policy.act`."""
        return self._get().act(observations)
