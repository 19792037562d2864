"""Policies with a memory: evaluated, loaded and served, they act as they act in training."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import mlflow.pyfunc
import numpy as np
import pytest

import rl_training
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import UserError
from rl_training.runtime.checkpoint import find_checkpoint
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.recurrent_policy import EpisodeActor, RecurrentPolicy
from rl_training.runtime.trainers.ppo_trainer import train_ppo
from rl_training.runtime.workflows import load_policy
from rl_training.seeding import episode_seeds
from rl_training.tracking.pyfunc import PolicyModel, check_model, save_model


def settings(run_dir: Path, **fields: Any) -> PPOConfig:
    task = {"env_id": "Pendulum-v1", "wrappers": ["HideVelocities"], "max_episode_steps": 30}
    small = {
        "num_envs": 2,
        "rollout_steps": 16,
        "batch_size": 32,
        "total_timesteps": 64,
        "evaluation": {"every": 10**6},
    }
    network = {"hidden": [8], "recurrent": "lstm", "recurrent_size": 16, "initial_log_std": -1.0}
    return PPOConfig(**{**task, **small, **fields}, network=network, run_dir=run_dir, learning_rate=0.02)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    train_ppo(settings(run_dir, normalization={"observation": True}))
    return run_dir


def observe(steps: int = 7, seed: int = 0) -> np.ndarray:
    """The first observations of an episode with fixed actions."""
    env = gym.make("Pendulum-v1")
    observations = [env.reset(seed=seed)[0]]
    observations += [env.step(np.float32([1.0]))[0] for _ in range(steps - 1)]
    return np.stack(observations)[:, :2]


def act_through(run: Path, observations: np.ndarray, **options: Any) -> np.ndarray:
    episode = rl_training.load_policy(run).begin_episode()
    return np.stack([episode.act(observation, **options) for observation in observations])


def test_a_policy_acts_on_all_observations_of_the_episode(run: Path) -> None:
    first, second = observe(seed=0), observe(seed=1)
    mixed = np.concatenate([first[:6], second[6:]])
    actions, others = act_through(run, first), act_through(run, mixed)
    np.testing.assert_array_equal(actions[:6], others[:6])
    second_actions = act_through(run, second)
    assert abs(others[6] - second_actions[6]) > 1e-4  # the same newest observation after another history


def test_the_loaded_policy_acts_as_the_training_networks(run: Path) -> None:
    policy = load_policy(find_checkpoint(run))
    assert isinstance(policy, RecurrentPolicy)
    observations = observe()
    encoded = policy.normalizer.normalize(policy.encoder.encode_list(list(observations)))
    memories = np.zeros((1, *policy.algorithm.network.memory_shape), np.float32)
    expected = []
    for row in encoded:
        outputs, _, memories = policy.algorithm.network.step(row[None], memories)
        expected.append(policy.codec.to_env(policy.algorithm.choose_best(outputs))[0])
    np.testing.assert_allclose(act_through(run, observations), np.stack(expected), atol=1e-6)


def test_an_evaluation_does_not_depend_on_the_number_of_environments(run: Path) -> None:
    policy, config = load_policy(find_checkpoint(run)), settings(run)
    seeds = episode_seeds(0, "evaluation", 9)
    one, three, eight = (evaluate_policy(policy, config, seeds, num_envs=n).returns for n in (1, 3, 8))
    assert one == three == eight
    assert len(set(one)) == 9


def test_an_evaluation_remembers_each_episode_and_begins_each_with_an_empty_memory(run: Path) -> None:
    policy, config = load_policy(find_checkpoint(run)), settings(run)
    played = []
    for seed in (3, 4):
        env, episode, total = gym.make("Pendulum-v1", max_episode_steps=30), EpisodeActor(policy), 0.0
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            (action,) = episode.act(["the only one"], [observation[:2]])
            observation, reward, _, over, _ = env.step(action)
            total += float(reward)
        played.append(total)
    assert evaluate_policy(policy, config, [3, 4], num_envs=1).returns == pytest.approx(played)


def test_drawn_actions_follow_the_seed_and_vary_around_the_greedy_one(run: Path) -> None:
    policy, observation = rl_training.load_policy(run), observe(1)[0]

    def draw(seed: int) -> list[float]:
        policy.seed(seed)
        return [float(policy.begin_episode().act(observation, deterministic=False)[0]) for _ in range(200)]

    drawn = draw(0)
    assert drawn == draw(0) != draw(1)
    greedy = float(policy.begin_episode().act(observation)[0])
    assert np.mean(drawn) == pytest.approx(greedy, abs=0.1)
    assert np.std(drawn) == pytest.approx(np.exp(-1.0), rel=0.2)


@pytest.mark.parametrize("observation", [observe(1)[0], observe(3), [observe(1)[0]]], ids=["one", "batch", "list"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_observations_without_their_episode_are_refused(run: Path, observation: Any, deterministic: bool) -> None:
    message = r"got observations without their episodes, and the policy has a memory.*call begin_episode\(\)"
    with pytest.raises(UserError, match=message):
        rl_training.load_policy(run).act(observation, deterministic)


def test_a_batch_is_not_an_observation_of_one_episode(run: Path) -> None:
    with pytest.raises(
        UserError, match=r"got a batch of observations, expected one of Box.*; begin an episode for each"
    ):
        rl_training.load_policy(run).begin_episode().act(observe(3))


def test_the_served_model_acts_on_histories_as_the_policy_acts_in_episodes(run: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(run)
    save_model(checkpoint, tmp_path / "model")
    check_model(tmp_path / "model", load_policy(checkpoint))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert str(model.metadata.signature.inputs) == "[Tensor('float32', (-1, -1, 2))]"
    histories = np.stack([observe(seed=0), observe(seed=1)])
    expected = np.stack([act_through(run, history)[-1] for history in histories])
    np.testing.assert_array_equal(model.predict(histories), expected)
    np.testing.assert_array_equal(model.predict(histories[:1, :4]), act_through(run, histories[0])[3:4])


def test_the_served_model_takes_histories_of_different_lengths_and_refuses_single_observations(run: Path) -> None:
    model = PolicyModel(load_policy(find_checkpoint(run)))
    histories = [observe(3, seed=0), observe(6, seed=1)]
    expected = [act_through(run, history)[-1] for history in histories]
    np.testing.assert_array_equal(model.predict(histories), expected)
    for wrong in (observe(3), [observe(3)[:0]], [observe(3)[:, :1]]):
        with pytest.raises(UserError, match="expected the history of an episode: all of its observations so far"):
            model.predict(wrong)


def test_a_policy_without_a_memory_acts_in_episodes_too(tmp_path: Path) -> None:
    config = PPOConfig(
        env_id="CartPole-v1", total_timesteps=16, rollout_steps=16, batch_size=16, run_dir=tmp_path / "run"
    )
    train_ppo(config)
    policy = rl_training.load_policy(tmp_path / "run")
    episode, observation = policy.begin_episode(), np.float32([0.1, -0.2, 0.3, 0.4])
    assert episode.act(observation) == policy.act(observation)
