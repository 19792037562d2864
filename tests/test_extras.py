"""Environments of the extras box2d and mujoco: the shipped settings train, and a missing extra is one line."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.cli.app import run
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.shipped_configs import list_shipped_configs
from rl_training.envs.env_lookup import find_spec
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.mujoco_log import log_mujoco_warnings
from rl_training.errors import EnvironmentRefused, UserError
from rl_training.experiment.loading import load_config
from tests.shipped_runs import MANAGER, findings, policy, small, steps_into_episodes, stopped_and_resumed

ON_POLICY = {"total_timesteps": 480, "num_envs": 2, "rollout_steps": 64, "batch_size": 64}
OFF_POLICY = {"total_timesteps": 280, "num_envs": 1, "learning_starts": 60, "buffer_size": 250, "batch_size": 32}
RUNS = [
    ("ppo/lunar_lander", ON_POLICY, 45),
    ("dqn/lunar_lander", OFF_POLICY, 300),
    ("sac/lunar_lander_continuous", OFF_POLICY, 300),
    ("ppo/half_cheetah", ON_POLICY, 200),
    ("sac/half_cheetah", OFF_POLICY, 300),
]


@pytest.mark.parametrize(("name", "changed", "polls"), RUNS, ids=[run[0] for run in RUNS])
def test_shipped_settings_train_and_resume_within_an_episode(name: str, changed: dict[str, Any], polls: int) -> None:
    config = small(name, **changed)
    assert findings(config) == []
    whole = MANAGER.setup(config).train()
    stopped, resumed = stopped_and_resumed(config, polls)
    assert min(steps_into_episodes(stopped)) > 0
    assert 0 < stopped.num_timesteps < resumed.num_timesteps == whole.num_timesteps == config.total_timesteps
    assert policy(resumed) == policy(whole) != policy(stopped)


# What is missing.


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the packages named look as if they were not installed."""

    def hide(*packages: str) -> None:
        for loaded in list(sys.modules):
            if loaded.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco", "gymnasium.wrappers.atari")):
                monkeypatch.delitem(sys.modules, loaded)
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    return hide


MISSING = [
    ("LunarLander-v3", "Box2D", "box2d"),
    ("HalfCheetah-v5", "mujoco", "mujoco"),
    ("gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetah-v5", "mujoco", "mujoco"),
    ("ale_py:ALE/Pong-v5", "ale_py", "atari"),
    ("gymnasium_robotics:FetchReach-v4", "gymnasium_robotics", "robotics"),
]


def test_a_missing_ray_is_named(without: Any) -> None:
    without("ray")
    with pytest.raises(UserError, match=r"^vectorization: ray needs Ray; run: pip install 'rl-training\[ray\]'$"):
        make_vector_env(PPOConfig(env_id="CartPole-v1", total_timesteps=1_000, vectorization="ray"))


@pytest.mark.parametrize(("env_id", "package", "extra"), MISSING)
def test_a_missing_extra_is_named(env_id: str, package: str, extra: str, without: Any) -> None:
    without(package)
    with pytest.raises(EnvironmentRefused) as refused:
        make_env(PPOConfig(env_id=env_id, total_timesteps=1_000), 0)
    expected = f"environment {env_id!r}: {package} is not installed; run: pip install 'rl-training[{extra}]'"
    assert str(refused.value) == expected


def test_a_wrapper_names_its_missing_extra(without: Any) -> None:
    without("cv2")
    config = PPOConfig(env_id="CartPole-v1", total_timesteps=1_000, wrappers=["AtariPreprocessing"])
    with pytest.raises(EnvironmentRefused) as refused:
        make_env(config, 0)
    expected = "wrapper 'AtariPreprocessing': cv2 is not installed; run: pip install 'rl-training[atari]'"
    assert str(refused.value) == expected


def test_the_module_of_an_atari_id_is_suggested() -> None:
    with pytest.raises(EnvironmentRefused, match=r"unknown namespace 'ALE'.* before the id: ale_py:ALE/Pong-v5$"):
        find_spec("ALE/Pong-v5")


@pytest.mark.parametrize("words", [["validate-env", "LunarLander-v3"], ["train", "--config", "dqn/lunar_lander"]])
def test_the_command_line_says_it_and_makes_no_run(
    words: list[str], without: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    without("Box2D")
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    assert run(words) == 2
    lines = "".join(capfd.readouterr()).splitlines()
    assert lines[-1] == "fatal: not-made: Box2D is not installed; run: pip install 'rl-training[box2d]'"
    assert len(lines) == 2
    assert not list(tmp_path.glob("home/runs/*"))


# The settings.


def test_each_shipped_environment_says_what_to_install() -> None:
    needed = {"LunarLander-v3": "box2d", "LunarLanderContinuous-v3": "box2d", "ale_py:ALE/Pong-v5": "atari"}
    needed["gymnasium_robotics:FetchReach-v4"] = "robotics"
    needed |= dict.fromkeys(("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"), "mujoco")
    found = set()
    for name in list_shipped_configs():
        config = load_config(name)
        text = (Path(__file__).parents[1] / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
        assert ("pip install 'rl-training[" in text) == (config.env_id in needed), name
        if config.env_id in needed:
            assert f"pip install 'rl-training[{needed[config.env_id]}]'" in text
            found.add((config.algo, config.env_id))
    assert len(found) == 12


@pytest.mark.parametrize("name", ["ppo/pong", "dqn/pong"])
def test_pong_has_the_standard_preprocessing(name: str) -> None:
    config = load_config(name)
    assert config.env_kwargs == {"frameskip": 1, "repeat_action_probability": 0.0}
    atari, stack = config.wrappers
    assert (atari.name, stack.name, stack.kwargs) == ("AtariPreprocessing", "FrameStackObservation", {"stack_size": 4})
    assert atari.kwargs == {"noop_max": 30, "frame_skip": 4, "screen_size": 84, "grayscale_obs": True}


# MuJoCo's log file.


def test_mujocos_warnings_are_logged_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By itself, it writes them to MUJOCO_LOG.TXT in the working directory."""
    monkeypatch.chdir(tmp_path)
    env = make_env(PPOConfig(env_id="HalfCheetah-v5", total_timesteps=1_000), 0)
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e12
    with caplog.at_level(logging.WARNING):
        env.step(np.zeros(6, np.float32))
    env.close()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "MuJoCo: Nan, Inf or huge value in QVEL at DOF 0. The simulation is unstable."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_handler_of_mujocos_warnings_that_is_set_stays() -> None:
    import mujoco

    before, seen = mujoco.get_mju_user_warning(), []
    mujoco.set_mju_user_warning(seen.append)
    try:
        log_mujoco_warnings(find_spec("HalfCheetah-v5"))
        assert mujoco.get_mju_user_warning() == seen.append
    finally:
        mujoco.set_mju_user_warning(before)
