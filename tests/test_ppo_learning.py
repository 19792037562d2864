"""PPO learns the known optimum for each kind of action and observation, and the values."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms.ppo import PPO
from rl_training.envs.spaces import ObservationEncoder
from tests.ppo_parts import ACTIONS, VECTOR, go_on, make_buffer, make_ppo, one_step_episodes

CONTEXTS = np.arange(3)
"""A task of three situations, each with one best action; an episode is one step."""

SETTINGS = {
    "num_envs": 16, "rollout_steps": 16, "batch_size": 64, "learning_rate": 5e-3, "entropy_coef": 0.001, "seed": 2,
}  # fmt: skip


def pixels(contexts: np.ndarray, size: int) -> np.ndarray:
    """Images with a bright block of columns, by context."""
    images = np.zeros((len(contexts), size, size, 1), np.uint8)
    for image, context in zip(images, contexts, strict=True):
        image[:, context * size // 3 : (context + 1) * size // 3] = 200
    return images


CAMERA = gym.spaces.Dict(
    {"camera": gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), "speed": gym.spaces.Box(-1, 1, (1,), np.float32)}
)
OBSERVATIONS: dict[str, tuple[gym.Space[Any], Callable[[np.ndarray], Any]]] = {
    "vector": (VECTOR, lambda c: np.eye(3, dtype=np.float32)[c] - 0.3),
    "discrete": (gym.spaces.Discrete(3), lambda c: c),
    "small image": (gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), lambda c: pixels(c, 6)),
    "large image": (gym.spaces.Box(0, 255, (36, 36, 1), np.uint8), lambda c: pixels(c, 36)),
    # Neither part alone tells contexts 0, 1 and 2 apart.
    "mixed": (CAMERA, lambda c: {"camera": pixels(c // 2, 6), "speed": (c % 2)[:, None].astype(np.float32)}),
}
BEST: dict[str, np.ndarray] = {
    "discrete": np.array([2, 0, 1]),
    "multi_discrete": np.array([[1, 0], [0, 2], [1, 1]]),
    "multi_binary": np.array([[0, 1, 1], [1, 0, 0], [0, 0, 1]]),
    "box": np.array([[1.0, -0.5], [0.0, 0.8], [-1.0, 0.0]]),
}


def train(action_kind: str, observation_kind: str, updates: int, **settings: Any) -> tuple[PPO, np.ndarray]:
    """Returns the agent and the encoded observation of each context."""
    space, observe = OBSERVATIONS[observation_kind]
    encoder, action_space, best = ObservationEncoder(space), ACTIONS[action_kind], BEST[action_kind]
    ppo = make_ppo(space, action_space, **SETTINGS | settings)
    buffer = make_buffer(ppo, space, action_space)
    rng = np.random.default_rng(0)
    seen: list[np.ndarray] = []

    def draw(count: int) -> np.ndarray:
        seen.append(rng.integers(0, 3, count))
        return encoder.encode(observe(seen[-1])).copy()

    def reward(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        errors = np.abs(actions - best[seen[-1]]).reshape(len(actions), -1)
        return -np.square(errors).sum(1) if action_kind == "box" else (errors == 0).mean(1)

    for update in range(updates):
        one_step_episodes(ppo, buffer, draw, reward)
        ppo.update(buffer, update / updates, go_on)
    return ppo, encoder.encode(observe(CONTEXTS)).copy()


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_best_action_of_each_kind_is_learnt(kind: str) -> None:
    ppo, observations = train(kind, "vector", updates=40)
    np.testing.assert_allclose(ppo.act_greedy(observations), BEST[kind], atol=0.25 if kind == "box" else 0)
    if kind != "box":
        np.testing.assert_allclose(ppo.value(observations), 1.0, atol=0.1)


@pytest.mark.parametrize(
    ("kind", "updates"),
    [
        ("vector", 60),
        ("discrete", 60),
        ("small image", 30),
        pytest.param("large image", 30, marks=pytest.mark.slow),
        pytest.param("mixed", 60, marks=pytest.mark.slow),
    ],
)
def test_each_kind_of_observation_is_learnt_from(kind: str, updates: int) -> None:
    # The scalar beside an image tells two contexts apart by little at first: the policy must not be sure before.
    entropy_coef = 0.05 if kind == "mixed" else 0.001
    ppo, observations = train("discrete", kind, updates, learning_rate=1e-3, entropy_coef=entropy_coef)
    assert ppo.act_greedy(observations).tolist() == BEST["discrete"].tolist()


@pytest.mark.parametrize(
    ("option", "value"), [("value_clip", 0.5), ("target_kl", 0.02), ("normalize_advantage", False), ("epochs", 8)]
)
def test_the_options_learn_too(option: str, value: Any) -> None:
    ppo, observations = train("discrete", "vector", updates=60, **{option: value})
    assert ppo.act_greedy(observations).tolist() == BEST["discrete"].tolist()


@pytest.mark.parametrize(
    ("ends", "first", "last"),
    [
        ("truncated", 10.0, 10.0),  # 1 / (1 - 0.9): the cut is not the end of the world
        ("terminated", (1 - 0.9**10) / 0.1, 1.0),
        ("both", (1 - 0.9**10) / 0.1, 1.0),
    ],
)
def test_values_of_episodes_of_ten_steps(ends: str, first: float, last: float) -> None:
    """Reward 1 a step, gamma 0.9. An ended episode shows its step; a cut one looks the same at every step."""
    ppo = make_ppo(
        gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2), num_envs=8, rollout_steps=32, batch_size=64, gamma=0.9,
        learning_rate=5e-3, learning_rate_schedule="linear",
    )  # fmt: skip
    buffer = make_buffer(ppo, gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2))
    steps = np.arange(8)  # the environments are out of phase

    def observe(steps: np.ndarray) -> np.ndarray:
        shown = np.full((len(steps), 2), 0.5, np.float32)
        if ends != "truncated":
            shown[:, 0] = steps / 10
        return shown

    for update in range(80):
        buffer.reset()
        while not buffer.full:
            observations = observe(steps)
            actions, logprobs, values = ppo.act(observations)
            steps = steps + 1
            over = steps == 10
            terminated, truncated = over & (ends != "truncated"), over & (ends != "terminated")
            final_values = ppo.value(observe(steps))
            buffer.add(observations, actions, np.ones(8), terminated, truncated, values, logprobs, final_values)
            steps = np.where(over, 0, steps)
        buffer.compute_returns_and_advantages(ppo.value(observe(steps)), 0.9, 0.95)
        ppo.update(buffer, update / 80, go_on)
    learnt = ppo.value(observe(np.array([0, 9])))
    assert learnt[0] == pytest.approx(first, rel=0.05)
    assert learnt[1] == pytest.approx(last, rel=0.05)
