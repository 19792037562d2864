"""Games that wait for FIRE or have lives: training by lives, evaluation of complete games, and exact resumes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from game_envs import FIRE, NOOP, RIGHT

from rl_training import validate_env
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, EnvironmentRefused
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.evaluation import evaluate_policy
from tests.shipped_runs import MANAGER, policy, steps_into_episodes, stopped_and_resumed

LIVES: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "game_envs:Lives-v0",
    "wrappers": ["FireReset"],
    "training_wrappers": ["EpisodicLife"],
    "total_timesteps": 200,
    "num_envs": 2,
    "rollout_steps": 20,
    "batch_size": 20,
    "epochs": 1,
    "evaluation": {"every": 1_000, "final_episodes": 4, "video": False},
}


class Always:
    """A policy that always chooses the same action."""

    def __init__(self, action: int) -> None:
        env = make_env(config(training_wrappers=[]), 0)
        self.observation_space, self.action_space, self.action = env.observation_space, env.action_space, action

    def act(self, observations: Any) -> list[Any]:
        return [np.int64(self.action)] * len(observations)


def config(**changed: Any) -> PPOConfig:
    made = config_from_mapping({**LIVES, **changed})
    assert isinstance(made, PPOConfig)
    return made


def play_until_over(env: EpisodeReplay, action: int) -> tuple[Any, int, float]:
    """Returns the last observation, the number of steps, and the return."""
    total, steps, over = 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(action)
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    return observation, steps, total


def test_a_game_that_waits_for_fire_stalls_without_the_wrapper_and_is_played_with_it() -> None:
    stalled = evaluate_policy(Always(RIGHT), config(wrappers=[]).for_evaluation(), [1, 2])
    assert (stalled.returns, stalled.lengths) == ((0.0, 0.0), (60, 60))
    played = evaluate_policy(Always(RIGHT), config().for_evaluation(), [1, 2])
    # Each life ends by itself, and FIRE is pressed after each of the first two: every step is worth 1.
    assert played.returns == played.lengths
    assert all(9 <= length <= 18 for length in played.lengths)


def test_a_lost_life_ends_an_episode_of_training_and_the_game_goes_on() -> None:
    env = make_env(config(), 0)
    first, _ = env.reset(seed=3)
    assert first.tolist() == [3, 1, 1]  # three lives, in play after one step
    lives, steps = [], 0
    for _ in range(3):
        last, length, total = play_until_over(env, RIGHT)
        assert total == length
        steps += length
        began, _ = env.reset(options={})
        lives.append((last[0], env.unwrapped.games, began[0]))
    assert lives == [(2, 1, 2), (1, 1, 1), (0, 2, 3)]
    complete = evaluate_policy(Always(RIGHT), config().for_evaluation(), [3])
    assert complete.lengths == (steps,)


def test_the_first_observation_of_a_continued_episode_is_the_last_of_the_life_before() -> None:
    env = make_env(config(), 0)
    env.reset(seed=3)
    last, _, _ = play_until_over(env, NOOP)
    began, _ = env.reset()
    assert np.array_equal(began, last)


def test_a_reset_with_a_seed_starts_a_new_game_after_a_lost_life() -> None:
    env = make_env(config(), 0)
    env.reset(seed=3)
    play_until_over(env, NOOP)
    assert env.reset(seed=4)[0].tolist() == [3, 1, 1]


def test_an_episode_that_is_cut_in_the_middle_of_a_life_starts_a_new_game() -> None:
    env = make_env(config(max_episode_steps=3), 0)
    env.reset(seed=3)
    play_until_over(env, NOOP)
    assert env.reset()[0].tolist() == [3, 1, 1]


@pytest.mark.parametrize("lost", range(5))
@pytest.mark.parametrize("more", [0, 2])
def test_an_episode_that_continues_a_game_is_replayed_exactly(lost: int, more: int) -> None:
    env = make_env(config(), 0)
    env.reset(seed=3)
    for _ in range(lost):  # the fourth and fifth are lives of a second game, whose reset had no seed
        play_until_over(env, RIGHT)
        env.reset(options={})
    for _ in range(more):
        env.step(RIGHT)
    again = make_env(config(), 0)
    assert again.restore(env.snapshot()) is True
    assert (again.episode_length, again.episode_return) == (more, more)
    for _ in range(40):
        one, other = env.step(RIGHT), again.step(RIGHT)
        assert one[1:4] == other[1:4]
        assert np.array_equal(one[0], other[0])
        if one[2] or one[3]:
            assert np.array_equal(env.reset()[0], again.reset()[0])
    assert again.snapshot()["continued"] == env.snapshot()["continued"]


def test_a_snapshot_of_a_game_without_the_wrapper_is_as_before() -> None:
    env = make_env(config(training_wrappers=[]), 0)
    env.reset(seed=3)
    assert "continued" not in env.snapshot()


@pytest.mark.parametrize("polls", [45, 83, 121])
def test_a_run_by_lives_resumes_exactly(polls: int) -> None:
    settings = config()
    whole = MANAGER.setup(settings).train()
    stopped, resumed = stopped_and_resumed(settings, polls)
    assert max(steps_into_episodes(stopped)) > 0
    assert 0 < stopped.num_timesteps < resumed.num_timesteps == whole.num_timesteps == 200
    assert policy(resumed) == policy(whole) != policy(stopped)


def test_lives_end_no_episode_of_evaluation() -> None:
    with pytest.raises(ConfigError, match=r"wrappers: got EpisodicLife.*expected it under training_wrappers"):
        config(wrappers=["FireReset", "EpisodicLife"], training_wrappers=[])
    with pytest.raises(ConfigError, match=r"evaluation.wrappers: got EpisodicLife"):
        config(evaluation={"wrappers": ["EpisodicLife"]})


def test_a_game_without_fire_and_an_environment_without_lives_are_refused() -> None:
    with pytest.raises(
        EnvironmentRefused, match="the game has the actions NOOP, LEFT, and no FIRE; leave FireReset out"
    ):
        make_env(config(env_kwargs={"actions": ["NOOP", "LEFT"]}), 0)
    with pytest.raises(EnvironmentRefused, match="'EpisodicLife' does not fit environment 'CartPole-v1'"):
        make_env(config(env_id="CartPole-v1", wrappers=[]), 0)


def test_validation_names_the_option_that_restarts_games_and_what_to_use_instead() -> None:
    wrapper = {"name": "AtariPreprocessing", "kwargs": {"terminal_on_life_loss": True}}
    report = validate_env(config(wrappers=[wrapper], training_wrappers=[]))
    assert "EpisodicLife under training_wrappers" in " ".join(finding.line() for finding in report.findings)


def test_fire_is_an_action_of_the_policy_too() -> None:
    assert FIRE == 1
    pressed = evaluate_policy(Always(FIRE), config(wrappers=[]).for_evaluation(), [1])
    assert pressed.lengths[0] >= 12
