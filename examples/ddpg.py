"""A custom algorithm on the parts of TD3: deep deterministic policy gradient, DDPG (Lillicrap et al. 2016).

A deterministic policy learns from one critic, which learns from replayed transitions. To train on Pendulum:

    python ddpg.py

Shapes: N environments, B batch, A action dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from rl_training import AlgorithmSpec, evaluate_checkpoint, register_algorithm
from rl_training.algorithms.continuous.actor_critic import ActorCriticState, OffPolicyActorCritic, find_space_faults
from rl_training.config.algorithms.actor_critic import ActorCriticConfig
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.flat import FlatParameters
from rl_training.runtime.network_trainer import load_network_policy
from rl_training.runtime.trainer_factory import make_trainer, train
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer
from rl_training.seeding import generator


class DDPGConfig(ActorCriticConfig):
    """Settings of DDPG."""

    algo: Literal["ddpg"] = "ddpg"
    """The algorithm."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the Gaussian noise that is added to actions in training; actions are in [-1, 1]."""


@dataclass
class DDPGState(ActorCriticState):
    """What training changes besides the policy's weights; a checkpoint holds all of these fields."""

    target_policy: FlatParameters
    """The weights of the target policy."""


class DDPG(OffPolicyActorCritic):
    """Acts, and learns from replayed transitions."""

    config: DDPGConfig
    state: DDPGState
    ACTOR_MEASUREMENTS = ("actor_loss",)

    def __init__(
        self, config: DDPGConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        super().__init__(config, encoder, codec, device, actor_outputs=codec.size, critic_outputs=(1,))
        self.target_actor = self._make_actor(encoder, codec.size, generator(config.seed, "init"))
        self.state = DDPGState(**vars(self.state), target_policy=FlatParameters(self.target_actor, device))
        self.state.target_policy.vector.copy_(self.parameters.vector)

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the policy's action in each environment, float32 [N, A]."""
        return np.tanh(self.policy_outputs(observation))

    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Adds noise to the policy's actions, float32 [N, A]."""
        noise_NA = self.config.exploration_noise * rng.standard_normal(outputs.shape, dtype=np.float32)
        return (np.tanh(outputs) + noise_NA).clip(-1.0, 1.0).astype(np.float32)

    def _update(self, batch: ReplayBatch, learning_rate: float) -> dict[str, float]:
        observations = to_arrays(batch.obs, self.backend)
        metrics = self._step_critics(batch, observations, learning_rate)
        metrics |= self._step_actor(batch, observations, learning_rate)
        self._move_targets()
        self.state.target_policy.vector.lerp_(self.parameters.vector, self.config.tau)
        return metrics

    def _targets(self, next_observations: Observations, rewards_B: Array, discounts_B: Array, *draws: Any) -> Array:
        """Returns r + discount * Q_target(s', pi_target(s')), [B, 1]."""
        actions_BA = self.backend.xp.tanh(self.target_actor.evaluate(next_observations)[0])
        (values_B1,) = self.target_critics.evaluate(next_observations, actions_BA)
        return rewards_B[:, None] + discounts_B[:, None] * values_B1

    def _actor_gradient(self, observations: Observations, *draws: Any) -> tuple[Array, ...]:
        """Writes the gradient of the policy's loss, mean(-Q(s, pi(s))); returns the loss and the squared norm."""
        xp = self.backend.xp
        actions_BA = xp.tanh(self.actor(observations)[0])
        values_B1 = self.critics.evaluate_first(observations, actions_BA)
        d_actions_BA = self.critics.first_further_gradient(xp.full_like(values_B1, -1.0 / len(values_B1)))
        self.actor.backward(d_actions_BA * (1.0 - actions_BA**2))  # the derivative of tanh
        return -self.backend.mean(values_B1[:, 0]), self.parameters.squared_gradient_norm()


class DDPGTrainer(OffPolicyTrainer):
    """Trains DDPG."""

    config: DDPGConfig
    scale_actions = True

    def _make_algorithm(self) -> DDPG:
        return DDPG(self.config, self.envs.encoder, self.envs.codec, self.device)


check_spaces = partial(find_space_faults, "ddpg")
SPEC = AlgorithmSpec(
    name="ddpg",
    config_type=DDPGConfig,
    train=partial(train, DDPGTrainer, DDPGConfig, check_spaces),
    make_trainer=partial(make_trainer, DDPGTrainer),
    check_spaces=check_spaces,
    load_policy=partial(load_network_policy, config_type=DDPGConfig, make_algorithm=DDPG, scale_actions=True),
)

if __name__ == "__main__":
    register_algorithm(SPEC)
    settings = DDPGConfig(
        env_id="Pendulum-v1", total_timesteps=10_000, learning_rate=1e-3, gamma=0.98, network={"hidden": (64, 64)}
    )
    result = SPEC.train(settings)
    print(evaluate_checkpoint(result.checkpoint, episodes=20))
