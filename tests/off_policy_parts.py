"""Helpers of the tests of the off-policy algorithms' mathematics: agents, batches and small tasks."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.continuous.actor_critic import OffPolicyActorCritic
from rl_training.algorithms.continuous.sac import SAC
from rl_training.algorithms.continuous.td3 import TD3
from rl_training.algorithms.continuous.tqc import TQC
from rl_training.algorithms.dqn import DQN
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.data.priorities import Priorities
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks.backend import Backend
from rl_training.networks.feature_extractors import to_arrays
from rl_training.networks.flat import FlatParameters

CPU = torch.device("cpu")
VECTOR = gym.spaces.Box(-np.inf, np.inf, (3,))
CAMERA = gym.spaces.Dict(
    {"camera": gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), "speed": gym.spaces.Box(-1, 1, (1,), np.float32)}
)

SPACES = {"vector": VECTOR, "image": gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), "mixed": CAMERA}
UNEQUAL = gym.spaces.Box(np.float32([0, -math.pi / 4]), np.float32([5, math.pi / 4]))
"""Bounds that differ by dimension, and are not symmetric in the first."""
SMALL: dict[str, Any] = {
    "env_id": "none", "network": {"hidden": [16, 16]}, "learning_starts": 0, "total_timesteps": 10_000,
}  # fmt: skip


def make_dqn(observation_space: gym.Space[Any] = VECTOR, actions: int = 3, **settings: Any) -> DQN:
    """An agent on the CPU, with a small network unless told otherwise."""
    config = DQNConfig(**{**SMALL, **settings})
    encoder = ObservationEncoder(observation_space, config.mask_key)
    return DQN(config, encoder, ActionCodec(gym.spaces.Discrete(actions)), CPU)


def make_sac(
    observation_space: gym.Space[Any] = VECTOR, action_space: gym.Space[Any] | None = None, **settings: Any
) -> SAC:
    """An agent on the CPU, with a small network unless told otherwise; two action dims by default."""
    return SAC(SACConfig(**{**SMALL, **settings}), *_code(observation_space, action_space), CPU)


def make_td3(
    observation_space: gym.Space[Any] = VECTOR, action_space: gym.Space[Any] | None = None, **settings: Any
) -> TD3:
    """An agent as `make_sac`."""
    return TD3(TD3Config(**{**SMALL, **settings}), *_code(observation_space, action_space), CPU)


def make_tqc(
    observation_space: gym.Space[Any] = VECTOR, action_space: gym.Space[Any] | None = None, **settings: Any
) -> TQC:
    """An agent as `make_sac`."""
    return TQC(TQCConfig(**{**SMALL, **settings}), *_code(observation_space, action_space), CPU)


def _code(
    observation_space: gym.Space[Any], action_space: gym.Space[Any] | None
) -> tuple[ObservationEncoder, ActionCodec]:
    actions = action_space or gym.spaces.Box(-2, 2, (2,))
    return ObservationEncoder(observation_space), ActionCodec(actions, scaled=True)


def random_batch(
    actions: Callable[[np.random.Generator, int], np.ndarray],
    space: gym.Space[Any] = VECTOR,
    count: int = 32,
    seed: int = 0,
    scale: float = 1.0,
) -> ReplayBatch:
    """Transitions of one to three steps, of which a quarter ended their episode."""
    rng = np.random.default_rng(seed)
    encoder = ObservationEncoder(space)
    obs, next_obs = (np.zeros((count, *encoder.shape), encoder.dtype) for _ in range(2))
    for observations in (obs, next_obs):
        for part in [observations[name] for name in encoder.dtype.names or ()] or [observations]:
            part[:] = rng.integers(0, 256, part.shape) if part.dtype == np.uint8 else rng.standard_normal(part.shape)
    rewards = scale * rng.standard_normal(count).astype(np.float32)
    discounts = (0.99 ** rng.integers(1, 4, count) * (rng.random(count) > 0.25)).astype(np.float32)
    batch = ReplayBatch(obs, actions(rng, count), rewards, next_obs, discounts)
    return replace(batch, priorities=rng.uniform(0.1, 2.0, count))


def choices(rng: np.random.Generator, count: int) -> np.ndarray:
    """One of three actions each."""
    return rng.integers(3, size=count)


def moves(rng: np.random.Generator, count: int) -> np.ndarray:
    """Two numbers in [-1, 1] each."""
    return rng.uniform(-1, 1, (count, 2)).astype(np.float32)


def mlp(parameters: dict[str, torch.Tensor], s: int, x: torch.Tensor, prefix: str = "") -> torch.Tensor:
    """Network s of a stack with two hidden layers of rectifiers, in plain torch."""
    for layer in (0, 1):
        weight, bias = (parameters[f"{prefix}mlps.{kind}.{layer}"][s] for kind in ("weights", "biases"))
        x = torch.relu(x @ weight + bias)
    return x @ parameters[f"{prefix}mlps.head_weights.{s}"] + parameters[f"{prefix}mlps.head_biases.{s}"]


def in_float64(module: torch.nn.Module, noise: float = 0.2) -> FlatParameters:
    """Makes a network double, with weights that are further from their start, in a vector of their own."""
    parameters = FlatParameters(module.double(), CPU)
    generator = torch.Generator().manual_seed(1)
    parameters.vector.add_(noise * torch.randn(parameters.vector.shape, generator=generator, dtype=torch.float64))
    return parameters


def assert_gradients(module: torch.nn.Module, expected: Any) -> None:
    """Compares the gradients that are in a network with autograd's, none of which may be zero."""
    for (name, parameter), gradient in zip(module.named_parameters(), expected, strict=True):
        assert float(gradient.norm()) > 0.0, name
        assert float((parameter.grad - gradient).norm()) <= 1e-10 * float(gradient.norm()), name


def wide(batch: ReplayBatch) -> ReplayBatch:
    """The batch with its float32 arrays as float64."""

    def widen(array: np.ndarray) -> np.ndarray:
        if array.dtype.names is None:
            return array.astype(np.float64) if array.dtype == np.float32 else array
        fields = [(n, np.float64 if n == "vector" else np.uint8, array.dtype[n].shape) for n in array.dtype.names]
        return array.astype(np.dtype(fields))

    return ReplayBatch(**{name: widen(array) for name, array in vars(batch).items() if array is not None})


def in_arrays(batch: ReplayBatch, backend: Backend) -> tuple[Any, ...]:
    """Observations, next ones, actions, rewards and discounts, as an algorithm's functions of arrays take them."""
    observations = (to_arrays(each, backend) for each in (batch.obs, batch.next_obs))
    return *observations, *(backend.array(each) for each in (batch.actions, batch.rewards, batch.discounts))


def targets(agent: DQN | OffPolicyActorCritic, batch: ReplayBatch, *others: Any) -> Any:
    """Returns the targets of a batch's values, given what they draw: noise, and for SAC and TQC also alpha."""
    _, next_observations, _, rewards, discounts = in_arrays(batch, agent.backend)
    return agent._targets(next_observations, rewards, discounts, *others)


def through_a_file(state: dict[str, Any]) -> Any:
    """Returns a state after it was saved to a file and loaded again."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


# A task of three situations, each with one best action; an episode is one step.


def pixels(contexts: np.ndarray) -> np.ndarray:
    """Images with a bright block of columns, by context."""
    images = np.zeros((len(contexts), 6, 6, 1), np.uint8)
    for image, context in zip(images, contexts, strict=True):
        image[:, context * 2 : (context + 1) * 2] = 200
    return images


OBSERVATIONS: dict[str, tuple[gym.Space[Any], Callable[[np.ndarray], Any]]] = {
    "vector": (VECTOR, lambda c: np.eye(3, dtype=np.float32)[c] - 0.3),
    "discrete": (gym.spaces.Discrete(3), lambda c: c),
    "dict": (
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (1,))}),
        lambda c: {"a": c // 2, "b": (c % 2)[:, None].astype(np.float32)},
    ),
    "image": (gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), pixels),
    # Neither part alone tells contexts 0, 1 and 2 apart.
    "mixed": (CAMERA, lambda c: {"camera": pixels(c // 2), "speed": (c % 2)[:, None].astype(np.float32)}),
}


def solve_contexts(
    agent: DQN | OffPolicyActorCritic,
    kind: str,
    reward: Callable[[np.ndarray, np.ndarray], np.ndarray],
    steps: int,
    batch_size: int,
) -> np.ndarray:
    """Trains for `steps` of 8 environments, `reward(contexts, actions)`; returns the three encoded observations."""
    space, observe = OBSERVATIONS[kind]
    encoder, rng = ObservationEncoder(space), np.random.default_rng(0)
    action = agent.act(encoder.encode(observe(np.arange(3))), 0)
    buffer = ReplayBuffer(4_000, 8, encoder.shape, encoder.dtype, action.shape[1:], action.dtype)
    if agent.config.has_priorities:
        buffer.priorities = Priorities(buffer.capacity, alpha=0.6, epsilon=1e-6)
    ended, cut = np.ones(8, bool), np.zeros(8, bool)
    for step in range(steps):
        contexts = rng.integers(0, 3, 8)
        observations = encoder.encode(observe(contexts)).copy()
        actions = agent.act(observations, step * 8)
        buffer.add(observations, actions, reward(contexts, actions), observations, ended, cut)
        if step * 8 < agent.config.learning_starts:
            continue
        batch = buffer.sample(batch_size, agent.replay_rng)
        agent.update(batch, step / steps)
        if isinstance(agent, DQN) and buffer.priorities is not None:
            buffer.priorities.update(batch.places, agent.backend.numpy(agent.errors))
    return encoder.encode(observe(np.arange(3))).copy()


# Episodes of ten steps with reward 1 each.


def ten_steps(steps: np.ndarray, ends: str) -> np.ndarray:
    """An episode that ends shows its step; one that is cut looks the same at every step."""
    shown = np.full((len(steps), 2), 0.5, np.float32)
    if ends != "truncated":
        shown[:, 0] = steps / 10
    return shown


def live_ten_steps(
    agent: DQN | OffPolicyActorCritic, ends: str, updates: int, after_update: Callable[[int], None]
) -> None:
    """Trains on episodes of ten steps, 8 environments out of phase."""
    steps = np.arange(8)
    action = agent.act(ten_steps(steps, ends), 0)
    buffer = ReplayBuffer(
        4_000, 8, (2,), np.dtype(np.float32), action.shape[1:], action.dtype, gamma=agent.config.gamma
    )
    for update in range(updates):
        observations = ten_steps(steps, ends)
        actions = agent.act(observations, update * 8)
        steps = steps + 1
        over = steps == 10
        terminated, truncated = over & (ends != "truncated"), over & (ends != "terminated")
        buffer.add(observations, actions, np.ones(8), ten_steps(steps, ends), terminated, truncated)
        steps = np.where(over, 0, steps)
        agent.update(buffer.sample(64, agent.replay_rng), update / updates)
        after_update(update + 1)


TEN_STEP_VALUES = [
    ("truncated", 10.0, 10.0),  # 1 / (1 - 0.9): the cut is not the end of the world
    ("terminated", (1 - 0.9**10) / 0.1, 1.0),
    ("both", (1 - 0.9**10) / 0.1, 1.0),
]
"""How episodes end, and the values of their first and last states with a discount of 0.9."""
