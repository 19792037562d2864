"""Training on EnvPool's environments, which needs the extra envpool: `make extras-test`."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation.validate import validate_env
from rl_training.errors import EnvironmentRefused


def started(env_id: str = "CartPole-v1", **fields: Any) -> TrainingEnvs:
    envs = TrainingEnvs(settings(env_id, **fields), gamma=0.9)
    envs.start()
    return envs


def settings(env_id: str, **fields: Any) -> PPOConfig:
    fields = {"num_envs": 8, "vectorization": "envpool", "normalization": {"reward": False}, **fields}
    return PPOConfig(env_id=env_id, total_timesteps=100, **fields)


def test_rows_are_followed_by_gymnasiums_own_cartpole() -> None:
    envs = started(max_episode_steps=25)
    singles = [gym.make("CartPole-v1").unwrapped for _ in range(8)]
    lengths, rng, ended = np.zeros(8, int), np.random.default_rng(3), np.zeros(2, int)
    for _ in range(200):
        for i in np.flatnonzero(lengths == 0):
            singles[i].reset(seed=0)
            singles[i].state = envs.observation[i].astype(np.float64)
            assert 0.0 < np.abs(singles[i].state).max() <= 0.05
        actions = rng.integers(0, 2, 8) if rng.random() < 0.5 else (envs.observation[:, 2] > 0).astype(np.int64)
        step = envs.step(actions)
        lengths += 1
        for i, single in enumerate(singles):
            observation, reward, terminated, _, _ = single.step(actions[i])
            assert step.next_observation[i] == pytest.approx(observation, abs=1e-4)
            assert step.done[i] == (terminated or lengths[i] == 25)
            assert step.truncated[i] == (lengths[i] == 25)
            assert step.reward[i] == reward
        assert [episode[:3] for episode in step.episodes] == [
            (i, float(lengths[i]), lengths[i]) for i in np.flatnonzero(step.done)
        ]
        ended += (step.terminated.sum(), step.truncated.sum())
        lengths[step.done] = 0
    assert ended.min() > 5


def test_a_seed_gives_the_same_run_and_another_seed_another() -> None:
    def played(seed: int) -> list[Any]:
        envs = started(seed=seed)
        return [envs.step(np.full(8, t % 3 == 0, np.int64)).next_observation.tolist() for t in range(40)]

    assert played(1) == played(1) != played(2)


def test_a_resume_begins_fresh_episodes() -> None:
    envs = started()
    for _ in range(30):
        envs.step(np.ones(8, np.int64))
    state = envs.state_dict()
    again, twice = (TrainingEnvs(envs._config, gamma=0.9) for _ in range(2))
    assert again.load_state_dict(state) == twice.load_state_dict(state) == list(range(8))
    assert again.observation.tolist() == twice.observation.tolist() != started().observation.tolist()


def test_infos_have_a_row_for_each_environment() -> None:
    envs = started(metrics={"info": ["elapsed_step"]}, max_episode_steps=5)
    envs.collect_infos = True
    for t in range(1, 5):
        assert [info["elapsed_step"] for info in envs.step(np.arange(8) % 2).infos] == [t] * 8
    episodes = envs.step(np.arange(8) % 2).episodes
    assert [episode.numbers for episode in episodes] == [{"info/elapsed_step": 5.0}] * 8


def test_what_its_environments_do_not_have_is_refused() -> None:
    words = "got reset options, which native environments in EnvPool do not take; set vectorization to sync"
    envs = started()
    with pytest.raises(EnvironmentRefused, match=words):
        envs.set_reset_options({"low": 0.0})
    with pytest.raises(EnvironmentRefused, match="'CartPole-v1' has no attribute 'gravity'"):
        envs.set_attr("gravity", 1.0)


def test_validation_says_what_does_not_fit() -> None:
    assert validate_env(settings("Pendulum-v1", batch_size=64)).findings == ()
    with pytest.raises(EnvironmentRefused, match=r"EnvPool has none; set vectorization to sync, async or split$"):
        started("case_envs:Rows-v0")
