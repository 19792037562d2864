"""Making environments, and stepping many of them as trainers do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.training_envs import TrainingEnvs, VectorStep
from rl_training.errors import EnvironmentRefused
from rl_training.seeding import env_seeds

BOTH = pytest.mark.parametrize("vectorization", ["sync", "async"])


def settings(env_id: str, **fields: Any) -> PPOConfig:
    return PPOConfig(
        env_id=env_id,
        total_timesteps=100,
        **{"num_envs": 2, "rollout_steps": 256, "normalization": {"reward": False}, **fields},
    )


def started(env_id: str, **fields: Any) -> TrainingEnvs:
    envs = TrainingEnvs(settings(env_id, **fields), gamma=0.9)
    envs.start()
    return envs


def act(envs: TrainingEnvs, action: int) -> VectorStep:
    return envs.step(np.full((envs.num_envs, *envs.codec.shape), action, envs.codec.dtype))


@BOTH
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_transitions_and_statistics_are_those_of_gymnasiums_own_stack(env_id: str, vectorization: str) -> None:
    """The same seeds and actions in bare environments inside Gymnasium's `RecordEpisodeStatistics`."""
    config = settings(env_id, seed=3, max_episode_steps=30, vectorization=vectorization)
    envs = TrainingEnvs(config, gamma=0.9)
    envs.start()
    plain = [RecordEpisodeStatistics(gym.make(env_id, max_episode_steps=30)) for _ in range(2)]
    current = [env.reset(seed=seed)[0] for env, seed in zip(plain, env_seeds(3, 2), strict=True)]
    rng = np.random.default_rng(5)
    finished = 0
    for _ in range(90):
        assert envs.observation.tobytes() == np.stack(current).tobytes()
        actions = rng.integers(0, 2, 2) if env_id == "CartPole-v1" else rng.uniform(-2, 2, (2, 1)).astype(np.float32)
        step = envs.step(actions)
        expected = []
        for i, env in enumerate(plain):
            current[i], reward, terminated, truncated, info = env.step(actions[i])
            assert step.next_observation[i].tobytes() == current[i].tobytes()
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, truncated)
            if terminated or truncated:
                expected.append((i, float(info["episode"]["r"]), info["episode"]["l"], {}))
                current[i] = env.reset()[0]
        assert step.episodes == expected
        finished += len(expected)
    envs.close()
    assert finished >= 6


def test_actions_from_minus_one_to_one_are_scaled_where_asked_for() -> None:
    """Best is [4, 0] of a Box from [0, -pi/4] to [5, pi/4]: 0.8 and 0.5 of the way."""
    envs = TrainingEnvs(settings("case_envs:AsymAct-v0"), gamma=None, scale_actions=True)
    envs.start()
    assert envs.step(np.array([[0.6, 0.0], [-1.0, 0.0]], np.float32)).reward.tolist() == pytest.approx([0.0, -4.0])
    envs.close()


def test_the_settings_time_limit_takes_the_place_of_the_registered_one() -> None:
    env = make_env(settings("trialplug:PlugWalk-v0", max_episode_steps=7), 0)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(7)] == [False] * 6 + [True]


@BOTH
def test_autoreset_is_disabled_and_a_masked_reset_touches_its_rows_alone(vectorization: str) -> None:
    envs = make_vector_env(settings("case_envs:Plain-v0", num_envs=3, vectorization=vectorization))
    try:
        assert envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        envs.reset(seed=[1, 2, 3])
        for _ in range(4):
            observation, reward, terminated, truncated, _ = envs.step(np.array([1, 0, 1]))
        assert observation[:, 0] == pytest.approx([0.4, 0.4, 0.4])
        assert reward.tolist() == [1.0, 0.0, 1.0]
        assert not terminated.any()
        assert not truncated.any()
        observation, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert observation[:, 0] == pytest.approx([0.4, 0.0, 0.4])
    finally:
        envs.close()


@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize(("env_id", "length"), [("case_envs:FixedLen3-v0", 3), ("case_envs:OneStep-v0", 1)])
def test_every_episode_has_its_own_return_and_length(env_id: str, length: int, num_envs: int) -> None:
    envs = started(env_id, num_envs=num_envs)
    episodes = [episode for _ in range(10) for episode in act(envs, 0).episodes]
    assert len(episodes) == num_envs * (10 // length)
    assert {(episode.return_, episode.length) for episode in episodes} == {(float(length), length)}
    assert [episode.env_index for episode in episodes[:num_envs]] == list(range(num_envs))


@BOTH
def test_no_transition_crosses_a_reset_where_the_env_reuses_its_array(vectorization: str) -> None:
    envs = started("case_envs:SharedArray-v0", vectorization=vectorization)
    pairs = []
    for _ in range(25):
        observation = envs.observation
        pairs.append((observation, act(envs, 1).next_observation))
    envs.close()
    # Compared only now, when the environments' own arrays have long been overwritten.
    assert all(((after - before) == 1).all() for before, after in pairs)


@pytest.mark.parametrize(
    ("env_id", "terminated", "truncated"),
    [("CutAtTen", False, True), ("EndsAtTen", True, False), ("BothFlags", True, True)],
)
def test_flags_stay_apart_and_the_final_observation_is_the_true_one(
    env_id: str, terminated: bool, truncated: bool
) -> None:
    envs = started(f"case_envs:{env_id}-v0")
    for _ in range(10):
        step = act(envs, 0)
    assert step.terminated.tolist() == [terminated] * 2
    assert step.truncated.tolist() == [truncated] * 2
    assert step.done.all()
    if env_id != "CutAtTen":
        assert step.next_observation[:, 0].tolist() == [1.0, 1.0]
        assert envs.observation[:, 0].tolist() == [0.0, 0.0]


@BOTH
def test_the_caller_keeps_its_action_where_the_env_changes_it(vectorization: str) -> None:
    envs = started("case_envs:MutatesAction-v0", vectorization=vectorization)
    actions = np.array([[0.5, -1.0], [0.25, 3.0]], np.float32)
    step = envs.step(actions)
    envs.close()
    assert actions.tolist() == [[0.5, -1.0], [0.25, 3.0]]
    assert step.reward.tolist() == [-15.0, -12.5]  # 10 * (0.5 + 1), and 10 * (0.25 + 1) with 3.0 cut to its bound


@BOTH
def test_a_reward_in_an_array_is_one_number(vectorization: str) -> None:
    envs = started("case_envs:ArrayReward-v0", vectorization=vectorization)
    steps = [act(envs, 0) for _ in range(10)]
    envs.close()
    assert all(step.reward.shape == (2,) and step.reward.dtype == np.float64 for step in steps)
    assert [(episode.return_, episode.length) for episode in steps[-1].episodes] == [(10.0, 10)] * 2


@BOTH
def test_odd_infos_neither_stop_the_run_nor_stand_in_for_the_statistics(vectorization: str) -> None:
    envs = started("case_envs:OddInfo-v0", vectorization=vectorization)
    for _ in range(10):
        step = act(envs, 1)
    envs.close()
    assert [(episode.return_, episode.length) for episode in step.episodes] == [(10.0, 10)] * 2


def first_marks(seed: int, vectorization: str = "sync") -> list[float]:
    envs = started("case_envs:SeedEcho-v0", num_envs=4, batch_size=4, seed=seed, vectorization=vectorization)
    marks: list[float] = envs.observation[:, 0].tolist()
    envs.close()
    return marks


def test_each_env_has_a_seed_of_its_own_and_another_run_seed_shares_none() -> None:
    marks = first_marks(0) + first_marks(1)
    assert len(set(marks)) == 8
    assert first_marks(0) == marks[:4] == first_marks(0, "async")


def test_later_episodes_are_not_seeded_again() -> None:
    envs = started("case_envs:SeedEcho-v0", num_envs=4, batch_size=4)
    marks = []
    for step in range(30):
        if step % 10 == 0:
            marks += envs.observation[:, 0].tolist()
        act(envs, 0)
    assert len(set(marks)) == 12


@BOTH
def test_a_dict_of_an_image_and_numbers_is_one_array(vectorization: str) -> None:
    envs = started("case_envs:DictObs-v0", vectorization=vectorization)
    for _ in range(4):
        step = act(envs, 0)
    envs.close()
    # camera and switches come before position by key order; the vector is gear (one-hot of 3), position, switches.
    assert step.next_observation["vector"].tolist() == [[0, 1, 0, 4, -4, 0, 1]] * 2
    assert step.next_observation["image_0"].shape == (2, 3, 12, 16)
    assert (step.next_observation["image_0"] == 4).all()


@pytest.mark.parametrize("env_id", ["case_envs:Float64Obs-v0", "case_envs:DtypeLie-v0"])
def test_observations_are_cast_once_to_float32(env_id: str) -> None:
    envs = started(env_id)
    for _ in range(10):
        step = act(envs, 1)
        assert step.next_observation.dtype == envs.observation.dtype == np.float32
    assert step.next_observation.tolist() == [[1.0] * 4] * 2
    assert [episode.return_ for episode in step.episodes] == [10.0, 10.0]


def test_normalisers_count_each_real_transition_once_and_treat_final_observations_as_any_other() -> None:
    envs = started("case_envs:FixedLen3-v0", normalization={"observation": True, "reward": True})
    observations, rewards = envs.observation_normalizer, envs.reward_normalizer
    assert observations is not None
    assert rewards is not None
    acted_on = []
    for _ in range(7):
        acted_on.append(envs.observation.astype(np.float64))
        step = act(envs, 0)
        assert step.next_normalized.tolist() == observations.normalize(step.next_observation).tolist()
        assert envs.normalized().tolist() == observations.normalize(envs.observation).tolist()
        assert step.reward.tolist() == [1.0, 1.0]
        assert step.scaled_reward.tolist() == rewards.normalize(step.reward).tolist()
    assert observations.statistics.count == rewards.statistics.count == 14
    assert observations.statistics.mean == pytest.approx(np.concatenate(acted_on).mean(axis=0))
    # 1, 1.9, 2.71 twice over and 1 once more, in both environments.
    assert rewards.statistics.mean == pytest.approx((2 * (1 + 1.9 + 2.71) + 1) / 7)


def test_without_normalisers_everything_is_the_envs_own() -> None:
    envs = started("case_envs:Plain-v0")
    step = act(envs, 1)
    assert step.next_normalized is step.next_observation
    assert envs.normalized() is envs.observation
    assert step.scaled_reward.tolist() == [1.0, 1.0]


@BOTH
@pytest.mark.parametrize("env_id", ["trialplug:trialplug/Walk-v0", "trialplug:PlugWalk-v0"])
def test_ids_of_plugins_work_with_their_registered_limit(env_id: str, vectorization: str) -> None:
    envs = started(env_id, vectorization=vectorization)
    steps = [act(envs, action) for action in [1] * 5 + [0] * 25]
    envs.close()
    assert [(e.return_, e.length) for e in steps[4].episodes] == [(1.0, 5)] * 2
    assert [(e.return_, e.length) for e in steps[29].episodes] == [(0.0, 25)] * 2
    assert steps[29].truncated.all()


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("trialplug:Walk-v0", "unknown id 'Walk-v0' .*did you mean trialplug:trialplug/Walk-v0"),
        ("no_such_mod:X-v0", "no module named 'no_such_mod'"),
        ("broken_plugin:Any-v0", "missing package 'a_package_that_is_not_installed'"),
        ("nowhere/Walk-v0", "unknown namespace 'nowhere'; .*MODULE:nowhere/Walk-v0"),
        ("CartPol-v1", "unknown id 'CartPol-v1'; did you mean CartPole-v1"),
        ("CartPole-v9", "unknown id 'CartPole-v9'; did you mean CartPole-v1"),
        ("CartPole", "unknown id 'CartPole'; did you mean CartPole-v1"),
        ("case_envs:NeedsToken-v0", "could not be made: ValueError: api_token is required"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(env_id: str, words: str) -> None:
    with pytest.raises(EnvironmentRefused, match=words) as refused:
        make_env(settings(env_id), 0)
    assert "\n" not in str(refused.value)


def test_an_id_without_its_module_is_unknown_in_a_fresh_process_and_the_module_is_named() -> None:
    script = (
        "from rl_training.config.algorithms.ppo import PPOConfig\n"
        "from rl_training.envs.factory import make_env\n"
        "make_env(PPOConfig(env_id='trialplug/Walk-v0', total_timesteps=1), 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "unknown namespace 'trialplug'; its module must be named: trialplug:trialplug/Walk-v0" in last


def test_a_worker_that_cannot_make_its_env_refuses_as_well() -> None:
    with pytest.raises(EnvironmentRefused, match="could not be made: ValueError: api_token is required"):
        make_vector_env(settings("case_envs:NeedsToken-v0", vectorization="async"))


def test_a_refusal_does_not_repeat_the_arguments_which_may_be_secret() -> None:
    fields = {"env_kwargs": {"api_token": "CASE-SECRET", "bogus": 1}}
    with pytest.raises(EnvironmentRefused, match="unexpected keyword argument 'bogus'") as refused:
        make_env(settings("case_envs:NeedsToken-v0", **fields), 0)
    assert "CASE-SECRET" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_wrappers_stand_in_the_order_of_the_settings() -> None:
    wrappers = [
        {"name": "FrameStackObservation", "kwargs": {"stack_size": 3}},
        {"name": "gymnasium.wrappers:FlattenObservation"},
    ]
    envs = started("case_envs:Plain-v0", wrappers=wrappers)
    act(envs, 0)
    assert envs.encoder.shape == (12,)
    assert act(envs, 0).next_observation[0] == pytest.approx([0.0] * 4 + [0.1] * 4 + [0.2] * 4)


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ({"name": "FlatenObservation"}, "no 'FlatenObservation'; did you mean FlattenObservation"),
        ({"name": "nowhere:Thing"}, "No module named 'nowhere'"),
        ({"name": "NormalizeObservation"}, "use normalization.observation"),
        ({"name": "FrameStackObservation"}, "does not fit environment 'case_envs:Plain-v0': TypeError"),
        (
            {"name": "os:getcwd"},
            "wrapper 'os:getcwd' is not a class of wrappers; expected a subclass of gymnasium.Wrapper",
        ),
        ({"name": "subprocess:Popen"}, "wrapper 'subprocess:Popen' is not a class of wrappers"),
    ],
)
def test_wrappers_that_cannot_be_used_are_refused(wrapper: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentRefused, match=words):
        make_env(settings("case_envs:Plain-v0", wrappers=[wrapper]), 0)


def test_an_env_that_does_not_close_hides_no_refusal(caplog: pytest.LogCaptureFixture) -> None:
    env_id = "case_envs:FailsOnClose-v0"
    with pytest.raises(EnvironmentRefused, match="wrapper 'NoSuch'"):
        make_vector_env(settings(env_id, wrappers=[{"name": "NoSuch"}]))
    assert caplog.messages == [f"environment {env_id}: close raised OSError: port 7 is gone"]


def test_training_envs_that_do_not_close_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    started("case_envs:FailsOnClose-v0").close()
    assert caplog.messages == [
        "environment case_envs:FailsOnClose-v0: close raised OSError: port 7 is gone (and 1 more)"
    ]


def test_spaces_as_classes_are_refused_by_name() -> None:
    with pytest.raises(EnvironmentRefused, match="observation_space is the class Box itself"):
        make_env(settings("case_envs:SpacesAsClasses-v0"), 0)


def test_normalising_an_image_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match=r"normalization\.observation has nothing to normalise"):
        TrainingEnvs(settings("case_envs:SmallImage-v0", normalization={"observation": True}), gamma=0.9)


def test_sync_and_async_give_the_same_numbers() -> None:
    runs = []
    for vectorization in ("sync", "async"):
        envs = started("CartPole-v1", vectorization=vectorization, normalization={"observation": True, "reward": True})
        steps = [act(envs, i % 2) for i in range(60)]
        envs.close()
        runs.append([(s.next_normalized.tobytes(), s.scaled_reward.tobytes(), s.episodes) for s in steps])
    assert runs[0] == runs[1]
    assert any(episodes for *_, episodes in runs[0])


def test_the_path_of_child_processes_holds_the_tests() -> None:
    assert str(os.path.dirname(__file__)) in os.environ["PYTHONPATH"].split(os.pathsep)  # noqa: PTH120
