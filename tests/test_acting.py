"""`load_policy(...).act` for one observation, a batch and a list, greedily and by drawing."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rl_training import load_policy, train_dqn, train_ppo, train_sac, train_td3, train_tqc
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.errors import UserError
from rl_training.runtime.loaded_policy import LoadedPolicy
from tests.trainings import OFF, PPO

BATCH = 11
"""Observations in a batch: more than one block of a forward pass, and no multiple of it."""
KINDS = {
    "ppo": lambda: train_ppo(PPOConfig(env_id="CartPole-v1", **PPO)),
    "ppo-box": lambda: train_ppo(PPOConfig(env_id="Pendulum-v1", **PPO)),
    "ppo-choices": lambda: train_ppo(PPOConfig(env_id="case_envs:MultiDiscAct-v0", **PPO)),
    "ppo-bits": lambda: train_ppo(PPOConfig(env_id="case_envs:MultiBinaryAct-v0", **PPO)),
    "ppo-dict": lambda: train_ppo(PPOConfig(env_id="case_envs:DictObs-v0", **PPO)),
    "ppo-image": lambda: train_ppo(PPOConfig(env_id="case_envs:GreyImage-v0", **PPO)),
    "dqn": lambda: train_dqn(DQNConfig(env_id="CartPole-v1", double=True, dueling=True, **OFF)),
    "sac": lambda: train_sac(SACConfig(env_id="Pendulum-v1", **OFF)),
    "td3": lambda: train_td3(TD3Config(env_id="Pendulum-v1", **OFF)),
    "tqc": lambda: train_tqc(TQCConfig(env_id="Pendulum-v1", **OFF)),
}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedPolicy]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(tmp_path_factory.mktemp("home")))
        return {name: load_policy(train().run_dir) for name, train in KINDS.items()}


def draw_observations(space: gym.Space[Any]) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(BATCH)]


def stack(space: gym.Space[Any], observations: list[Any]) -> Any:
    """Returns the observations as a vector environment would."""
    return concatenate(space, observations, create_empty_array(space, len(observations)))


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_actions_of_a_batch_are_those_of_its_observations_one_by_one(
    kind: str, deterministic: bool, policies: dict[str, LoadedPolicy]
) -> None:
    policy = policies[kind]
    observations = draw_observations(policy.observation_space)
    policy.seed(1)
    alone = [policy.act(observation, deterministic) for observation in observations]
    policy.seed(1)
    batch = policy.act(stack(policy.observation_space, observations), deterministic)
    policy.seed(1)
    listed = policy.act(observations, deterministic)
    assert isinstance(batch, np.ndarray)
    assert batch_space(policy.action_space, BATCH).contains(batch)
    assert isinstance(listed, list)
    assert all(policy.action_space.contains(action) for action in [*alone, *listed])
    for actions in (alone, listed):
        assert np.array(actions).tobytes() == batch.tobytes()


@pytest.mark.parametrize("kind", ["ppo", "ppo-box", "sac", "td3", "tqc"])
def test_draws_follow_the_seed_and_vary_around_the_greedy_action(kind: str, policies: dict[str, LoadedPolicy]) -> None:
    policy = policies[kind]
    observation = draw_observations(policy.observation_space)[0]
    draws = []
    for seed in (1, 1, 2):
        policy.seed(seed)
        draws.append([policy.act(observation, deterministic=False) for _ in range(50)])
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert len(np.unique(np.array(draws[0]))) > 1
    assert len({policy.act(observation).tobytes() for _ in range(5)}) == 1


def test_dqn_explores_at_the_rate_of_the_end_of_its_training(tmp_path: Path) -> None:
    fields: dict[str, Any] = {**OFF, "exploration": {"end": 0.5}, "run_dir": tmp_path / "run"}
    policy = load_policy(train_dqn(DQNConfig(env_id="CartPole-v1", **fields)).checkpoint)
    policy.seed(0)
    observation = np.zeros(4, np.float32)
    greedy = policy.act(observation)
    draws = np.array([policy.act(observation, deterministic=False) for _ in range(400)])
    assert abs((draws != greedy).mean() - 0.25) < 0.07  # half of the random actions are the greedy one


def test_a_policy_says_what_it_takes(policies: dict[str, LoadedPolicy]) -> None:
    policy = policies["ppo"]
    assert policy.observation_space == gym.make("CartPole-v1").observation_space
    assert policy.action_space == gym.spaces.Discrete(2)
    assert "ppo" in repr(policy)


@pytest.mark.parametrize(
    ("kind", "observation", "message"),
    [
        ("ppo", np.zeros(3), r"got an observation of shape \(3,\), expected \(4,\), or \(N, 4\) for a batch of N"),
        ("ppo", np.zeros((2, 2, 4)), r"got an observation of shape \(2, 2, 4\)"),
        ("ppo", [0.0, 0.0, 0.1, 0.0], r"got an observation of shape \(\)"),
        ("ppo", [np.zeros((2, 4))], "a list holds complete observations"),
        ("ppo", [], "expected at least one observation"),
        ("ppo-dict", np.zeros(4), "expected an observation of Dict"),
    ],
)
def test_what_is_no_observation_is_refused_in_one_line(
    kind: str, observation: Any, message: str, policies: dict[str, LoadedPolicy]
) -> None:
    with pytest.raises(UserError, match=message) as error:
        policies[kind].act(observation)
    assert "\n" not in str(error.value)


def test_an_algorithm_that_cannot_draw_says_so() -> None:
    class Always:
        observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def act(self, observations: Any) -> list[int]:
            return [1] * len(observations)

    policy = LoadedPolicy(Always(), "always")
    assert policy.act(np.zeros(4)) == 1
    assert policy.act(np.zeros((3, 4))).tolist() == [1, 1, 1]
    with pytest.raises(UserError) as error:
        policy.act(np.zeros(4), deterministic=False)
    assert str(error.value) == (
        "algorithm always can't draw actions, because its policy has no sample(observations, rng); use "
        "deterministic=True"
    )
