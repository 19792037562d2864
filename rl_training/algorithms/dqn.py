"""Deep Q-learning (Mnih et al. 2015), with double and dueling networks and quantiles of the return as options.

Shapes: N environments, B batch, O observation dims, K actions, M quantiles; [M] stands for an axis that only quantiles
have.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.finite_checks import require_finite_update
from rl_training.algorithms.network_algorithm import OffPolicyAlgorithm
from rl_training.algorithms.q_losses import add_rewards, importance_weights, make_loss, weigh
from rl_training.algorithms.schedules import anneal
from rl_training.algorithms.space_checks import describe_wrong_actions, find_encoding_faults
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.spaces.action_mask import draw_allowed, take_features, take_mask
from rl_training.networks.adam import FlatAdam
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.flat import FlatParameters, Layers
from rl_training.networks.q_network import QNetwork
from rl_training.seeding import generator

AHEAD_ROWS = 256
"""Number of transitions whose target values are computed at once, if a block of updates has that many."""
MOST_AHEAD = {1: 1_024, 2: 2_048}
"""The most transitions that are drawn ahead of their updates, by the number of threads.

Two threads wait for each other a few times in each group of transitions, so the groups are larger.
"""


@dataclass
class DQNState:
    """Everything that training changes besides the weights; a checkpoint holds all of these fields."""

    target: FlatParameters
    """The target network's weights."""
    optimizer: FlatAdam
    """Adam's running means and its number of steps."""
    action_rng: np.random.Generator
    """Draws which environments explore, and their random actions."""
    replay_rng: np.random.Generator
    """Draws the transitions of each batch."""


class DQN(OffPolicyAlgorithm):
    """Acts, and learns from replayed transitions."""

    state: DQNState

    def __init__(
        self, config: DQNConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks with weights from the seed's `init` stream; the target network starts as a copy."""
        network, rng = config.network, generator(config.seed, "init")
        self.config, self.num_actions = config, codec.nvec[0]
        self._takes_vectors = encoder.kind == "vector" and network.body is None
        own = (config.dueling, config.quantiles, rng, network.body)
        self.network = QNetwork(encoder.features, self.num_actions, network.hidden, network.activation, *own)
        self.target_network = copy.deepcopy(self.network)
        self.parameters = FlatParameters(self.network, device)
        self.backend = self.parameters.backend
        self.errors: Array = None
        """The errors of the last update's transitions, [B], which prioritized replay draws by; see `q_losses`."""
        self._loss = make_loss(config.quantiles, self.backend)
        self._backpropagate = self.backend.captured(self._loss_gradient)
        self.state = DQNState(
            target=FlatParameters(self.target_network, device),
            optimizer=FlatAdam(self.parameters.vector, config.adam_epsilon),
            action_rng=generator(config.seed, "action"),
            replay_rng=generator(config.seed, "replay"),
        )

    def act(self, observation: np.ndarray, num_timesteps: int) -> np.ndarray:
        """Chooses an epsilon-greedy action in each environment, with independent draws.

        Args:
            observation: [N, *O].
            num_timesteps: The environment steps so far.

        Returns:
            Actions int64 [N].
        """
        rng, count, epsilon = self.state.action_rng, len(observation), self.config.epsilon_at(num_timesteps)
        # numpy draws the same numbers in a fifth of the time if no size is given.
        if count == 1 and observation.dtype.names is None:
            explores, action = rng.random() < epsilon, rng.integers(self.num_actions)
            return np.array([action]) if explores else self.act_greedy(observation)
        explores_N = rng.random(count) < epsilon
        random_N = self._draw(take_mask(observation), count, rng)
        if explores_N.all():
            return random_N
        return np.where(explores_N, random_N, self.act_greedy(observation))

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the action with the largest Q in each environment, int64 [N]."""
        allowed_NK = take_mask(observation)
        allowed = None if allowed_NK is None else self.backend.array(allowed_NK)
        inputs = to_arrays(take_features(observation), self.backend)
        return self.backend.numpy(self.network.best_actions(inputs, allowed))

    def _draw(self, allowed_NK: np.ndarray | None, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws random actions, of those that masks allow if there are masks, int64 [N]."""
        return rng.integers(self.num_actions, size=count) if allowed_NK is None else draw_allowed(allowed_NK, rng)

    def q_values(self, observation: np.ndarray) -> np.ndarray:
        """Returns Q of every action, float32 [N, K]."""
        outputs = self.network.evaluate(to_arrays(take_features(observation), self.backend))
        return self.backend.numpy(self.network.expect(outputs)).copy()

    def policy_outputs(self, observation: np.ndarray) -> np.ndarray:
        """Returns Q of every action, as `q_values`, and minus infinity for those that a mask forbids."""
        q_NK, allowed_NK = self.q_values(observation), take_mask(observation)
        return q_NK if allowed_NK is None else np.where(allowed_NK, q_NK, -np.inf)

    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Chooses actions epsilon-greedily by Q [N, K], with epsilon at the end of its decay; int64 [N]."""
        explores_N = rng.random(len(outputs)) < self.config.exploration.end
        allowed_NK = None if self.config.mask_key is None else outputs > -np.inf
        return np.where(explores_N, self._draw(allowed_NK, len(outputs), rng), outputs.argmax(1))

    @property
    def batches_ahead(self) -> tuple[int, int]:
        """The fewest and the most batches that are drawn together; they depend on the settings and the device alone."""
        config, size, most = self.config, self.config.batch_size, MOST_AHEAD[min(2, self.config.threads)]
        has_several = config.gradient_steps * max(1, config.num_envs // config.train_freq) > 1
        pays = has_several and config.gradient_steps * size >= AHEAD_ROWS
        # With priorities, each update changes what the next batch is.
        can = self._takes_vectors and self.backend.xp is np and config.prioritized_replay is None
        return (max(1, AHEAD_ROWS // size), max(1, most // size)) if pays and can else (1, 1)

    @np.errstate(all="ignore")  # the updates look for such values
    def look_ahead(self, batches: ReplayBatch, first: int) -> ReplayBatch:
        """Adds `targets` to all batches, or `next_outputs` with double DQN, whose choices need each update's weights.

        Each product has the rows of several batches, which makes fewer and larger ones. On some processors, the last
        bits of a row depend on its place in the product. So the number of its update decides a batch's place, however
        many batches remain after a resume, and other rows are filled with zeros.

        Args:
            batches: Several batches.
            first: Number of the first one's update in the run.
        """
        if self.batches_ahead == (1, 1):
            return batches
        size, count = self.config.batch_size, len(batches)
        rows, before = self.batches_ahead[0] * size, first % self.batches_ahead[0] * size
        after = -(before + count) % rows
        vectors = take_features(batches.next_obs)
        if before or after:
            vectors = np.pad(vectors, ((before, after), (0, 0)))
        next_outputs = self.target_network.evaluate_blocks(vectors, rows)[before : before + count]
        if self.config.double:
            return replace(batches, next_outputs=next_outputs)
        best = self._best(next_outputs, take_mask(batches.next_obs))
        return replace(batches, targets=add_rewards(batches.rewards, batches.discounts, best))

    def update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one gradient step.

        Args:
            batch: Transitions with normalised observations.
            progress: The completed fraction of all timesteps, in [0, 1].

        Returns:
            Metrics by their tracked names.

        Raises:
            NumericError: A loss, gradient or weight is NaN or infinite; nothing was changed.
        """
        config, state = self.config, self.state
        learning_rate = anneal(config.learning_rate, config.learning_rate_schedule, progress)
        measured = self._gradient(batch, progress)
        require_finite_update(measured, batch, {"Q-network": self.parameters, "target network": state.target})
        self.parameters.clip_gradient(measured["gradient_norm"], config.max_grad_norm)
        state.optimizer.step(self.parameters.vector, self.parameters.gradient, learning_rate)
        exploration_rate = config.epsilon_at(round(progress * config.total_timesteps))
        metrics = measured | {"learning_rate": learning_rate, "exploration_rate": exploration_rate}
        return {f"train/{name}": value for name, value in metrics.items()}

    @np.errstate(all="ignore")  # `require_finite_update` looks for such values in the measurements
    def _gradient(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Writes the gradient of the mean loss; returns the measurements by name."""
        backend, prioritized = self.backend, self.config.prioritized_replay
        known: dict[str, np.ndarray | None] = {"targets": batch.targets, "next_outputs": batch.next_outputs}
        known |= {"allowed": take_mask(batch.obs), "next_allowed": take_mask(batch.next_obs)}
        if prioritized is not None:
            weights_B = importance_weights(batch.priorities, prioritized.beta_at(progress))
            known["weights"] = weights_B.astype(batch.rewards.dtype)
        self.errors, *results = self._backpropagate(
            to_arrays(take_features(batch.obs), backend),
            to_arrays(take_features(batch.next_obs), backend),
            backend.array(batch.actions),
            backend.array(batch.rewards),
            backend.array(batch.discounts),
            {name: backend.array(array) for name, array in known.items() if array is not None},
        )
        *measured, squared_norm = backend.floats(results)
        names = ("q_loss", "q_mean", "q_max", "gradient_norm")
        return dict(zip(names, (*measured, math.sqrt(squared_norm)), strict=True))

    def _loss_gradient(
        self,
        observations: Observations,
        next_observations: Observations,
        actions_B: Array,
        rewards_B: Array,
        discounts_B: Array,
        known: Mapping[str, Array],
    ) -> tuple[Array, ...]:
        """Writes the gradient; returns the errors, the loss, mean and largest Q, and the gradient's squared norm.

        `known` may have importance weights, [B], the masks of the observations and of the next ones, [B, K], and what
        `look_ahead` computed.
        """
        backend, targets = self.backend, known.get("targets")
        if targets is None:
            next_known = known.get("next_outputs"), known.get("next_allowed")
            targets = self._targets(next_observations, rewards_B, discounts_B, *next_known)
        outputs = self.network(observations)
        taken = self._select(outputs, actions_B)
        losses_B, slopes, errors_B = self._loss(taken, targets)
        if "weights" in known:
            losses_B, slopes = weigh(losses_B, slopes, known["weights"])
        d_outputs = backend.zeros_like(outputs)
        places_B = backend.row_starts(*outputs.shape[:2]) + actions_B
        d_outputs.reshape(-1, *outputs.shape[2:])[places_B] = slopes * (1.0 / len(actions_B))
        self.network.backward(d_outputs)
        q_mean, q_max = backend.mean(taken.reshape(-1)), self.network.score(outputs, known.get("allowed")).max()
        return errors_B, backend.mean(losses_B), q_mean, q_max, self.parameters.squared_gradient_norm()

    def _targets(
        self,
        next_observations: Observations,
        rewards_B: Array,
        discounts_B: Array,
        outputs: Array | None = None,
        allowed_BK: Array | None = None,
    ) -> Array:
        """Returns r + discount * Q_target(s', a'), [B], or the quantiles of this return, [B, M].

        The discount is 0 if the episode terminated. `outputs` are the target network's, if they were computed ahead.
        `allowed_BK` are the masks of the next observations.
        """
        values = self.target_network.evaluate(next_observations) if outputs is None else outputs
        if self.config.double:
            chosen_B = self.network.score(self.network.evaluate(next_observations), allowed_BK).argmax(1)
            next_values = self._select(values, chosen_B)
        else:
            next_values = self._best(values, allowed_BK)
        return add_rewards(rewards_B, discounts_B, next_values)

    def _best(self, values: Array, allowed_BK: Array | None) -> Array:
        """Returns the values or quantiles, [B, [M]], of the action with the largest Q, given those of all actions."""
        if not self.config.quantiles and allowed_BK is None:
            return self.backend.row_max(values)
        # If nothing is allowed, the first action: after a terminal step, whose discount of 0 takes a finite value only.
        return self._select(values, self.network.score(values, allowed_BK).argmax(1))

    def _select(self, values: Array, actions_B: Array) -> Array:
        """Returns the values or quantiles of an action of each row, [B, [M]], given those of all, [B, K, [M]]."""
        return values.reshape(-1, *values.shape[2:])[self.backend.row_starts(*values.shape[:2]) + actions_B]

    def update_target(self) -> None:
        """Copies the Q-network to the target network."""
        self.state.target.vector.copy_(self.parameters.vector)

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Copies the layers that fit, as `NetworkAlgorithm.carry_over`; the target network starts as a copy."""
        layers = super().carry_over(weights, training)
        self.update_target()
        return layers


def check_spaces(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> list[str]:
    """Returns the reasons why DQN can't train on these spaces, one sentence each."""
    if not isinstance(action_space, gym.spaces.Discrete):
        discrete = gym.spaces.Discrete(1)  # a placeholder, so that the observation space is checked too
        return [
            *find_encoding_faults(observation_space, discrete),
            describe_wrong_actions("dqn", "Discrete", action_space),
        ]
    return find_encoding_faults(observation_space, action_space)
