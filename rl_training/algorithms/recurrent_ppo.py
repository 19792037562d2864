"""PPO with a memory: policy and value function see all observations of the episode so far, by recurrent layers.

A rollout is learned from in sequences of `sequence_length` steps. Each is evaluated again from the memory that was
stored before its first step, and the memory is emptied wherever an episode begins (Huang et al. 2022, LSTM details).

Shapes: N environments, C sequences, O observation dims, A action dims, K outputs of the policy head, P parts of a
memory, H units of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.ppo_learner import PPOLearner, PPOState, forbid
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import Minibatch, RolloutBuffer
from rl_training.data.sequence_buffer import SequenceBuffer, SequenceMinibatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.spaces.action_mask import take_features, take_mask
from rl_training.networks.distributions import make_distribution
from rl_training.networks.feature_extractors import to_arrays
from rl_training.networks.recurrent.recurrent_actor_critic import RecurrentActorCritic, Sequences
from rl_training.seeding import generator


@dataclass
class RecurrentPPOState(PPOState):
    """Everything that training changes besides the weights; a checkpoint holds all of these fields."""

    memories: np.ndarray = field(kw_only=True)
    """float32 [N, 2, P, H] what policy and value function remember of the running episodes."""


class RecurrentPPO(PPOLearner):
    """Acts with a memory of each running episode, and learns from rollouts."""

    network: RecurrentActorCritic
    state: RecurrentPPOState

    def __init__(
        self, config: PPOConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks with weights from the seed's `init` stream, and empty memories."""
        network, rng = config.network, generator(config.seed, "init")
        if network.recurrent is None:
            raise ValueError("RecurrentPPO needs network.recurrent; PPO has no memory")
        distribution = make_distribution(codec.space, network.initial_log_std)
        layers = (network.recurrent, network.recurrent_size, network.hidden, network.activation)
        self.network = RecurrentActorCritic(encoder.features, distribution, *layers, rng, network.body)
        self.acting = RecurrentActing(self)
        super().__init__(config, distribution, self.network, device)
        self._backpropagate = self._loss_gradient  # sequences differ in where episodes begin, and a graph can't
        memories = np.zeros((config.num_envs, *self.network.memory_shape), np.float32)
        self.state = RecurrentPPOState(**vars(self.state), memories=memories)

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the most probable actions [N, *A] for the first observations of episodes; see `remember`."""
        return self.distribution.mode(self.remember(observation, self.empty_memories(len(observation)))[0])

    def remember(self, observation: np.ndarray, memories: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluates the policy alone.

        Args:
            observation: [N, *O].
            memories: [N, P, H] what the policy remembers of the episodes before these observations.

        Returns:
            The parameters of the distribution of actions [N, K], and the memories [N, P, H] with these observations.
        """
        outputs_NK, after = self.network.step_policy(take_features(observation), memories)
        return forbid(outputs_NK, take_mask(observation), np), after

    def empty_memories(self, count: int) -> np.ndarray:
        """Returns the policy's memories before the first observation of episodes, [count, P, H]."""
        return np.zeros((count, *self.network.memory_shape[1:]), np.float32)

    def choose_best(self, outputs: np.ndarray) -> np.ndarray:
        """Returns the most probable action of each distribution, [N, *A]."""
        return self.distribution.mode(outputs)

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Returns V(observation), float32 [N], for observations that follow the episodes so far, also their last ones.

        The memories stay as they are.
        """
        return self.network.step(take_features(observation), self.state.memories)[1]

    def begin_episodes(self, env_indices: Sequence[int]) -> None:
        """Empties the memories of some environments, because other episodes begin."""
        self.state.memories[env_indices] = 0.0

    def make_buffer(self, num_envs: int, encoder: ObservationEncoder, codec: ActionCodec) -> SequenceBuffer:
        """Returns a buffer for the rollouts of a number of environments."""
        size = (self.config.rollout_steps, num_envs)
        return SequenceBuffer(
            *size, encoder.shape, encoder.dtype, codec.shape, codec.dtype,
            sequence_length=self.config.sequence_steps, memory_shape=self.network.memory_shape,
        )  # fmt: skip

    def _select_inputs(self, minibatch: Minibatch) -> Sequences:
        assert isinstance(minibatch, SequenceMinibatch)
        observations = to_arrays(take_features(minibatch.obs), self.backend)
        return Sequences(observations, minibatch.lengths, minibatch.memories)


class RecurrentActing:
    """Draws the actions of a rollout step by step, because a memory holds all steps before.

    Attributes:
        is_full: Whether `complete` must follow each step; see `BlockActing`.
    """

    is_full = True

    def __init__(self, algorithm: RecurrentPPO) -> None:
        self._algorithm = algorithm
        self._pending: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Returns an action for each environment, [N, *A], and remembers the observations [N, *O]."""
        algorithm, distribution = self._algorithm, self._algorithm.distribution
        before = algorithm.state.memories
        features, allowed_NK = take_features(observation), take_mask(observation)
        outputs_NK, values_N, algorithm.state.memories = algorithm.network.step(features, before)
        outputs_NK = forbid(outputs_NK, allowed_NK, np)
        noise_1NK = algorithm.draw_noise(1, len(observation))
        actions = distribution.choose(outputs_NK, noise_1NK[0])
        self._pending = before, values_N, distribution.log_probs(outputs_NK[None], actions[None], noise_1NK)
        return actions

    def complete(self, buffer: RolloutBuffer) -> None:
        """Stores values, log-probabilities and memories of the newest step, and forgets the episodes that it ended."""
        if self._pending is None:
            return
        assert isinstance(buffer, SequenceBuffer)
        (before, values_N, logprobs_1N), self._pending = self._pending, None
        buffer.store_estimates(values_N[None], logprobs_1N)
        buffer.store_memories(before)
        self._algorithm.begin_episodes(np.flatnonzero(buffer.dones[buffer.position - 1]).tolist())


def make_ppo(
    config: PPOConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
) -> PPO | RecurrentPPO:
    """Returns the PPO of the settings, with a memory if they ask for one."""
    return (PPO if config.network.recurrent is None else RecurrentPPO)(config, encoder, codec, device)
