"""Environments with unusual dtypes train to the same policy as their plain twins, and can be evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from case_envs.observations import OddDtypes
from gymnasium import spaces

from rl_training import TrainResult, evaluate_checkpoint, load_policy, resume
from rl_training.envs.native.native_vector_env import NativeVectorEnv
from rl_training.envs.plain_spaces import make_plain_space
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.experiment.loading import config_from_mapping
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.checkpoint import open_checkpoint
from tests.trainings import OFF, PPO


def trained(algo: str, run_dir: Path, **env_kwargs: Any) -> TrainResult:
    settings = {**(PPO if algo == "ppo" else OFF), "algo": algo, "run_dir": str(run_dir)}
    config = config_from_mapping({**settings, "env_id": "case_envs:OddDtypes-v0", "env_kwargs": env_kwargs})
    result: TrainResult = get_algorithm(algo).train(config)
    return result


@pytest.mark.parametrize(
    ("algo", "odd", "plain"),
    [
        ("ppo", {"observations": ">f4"}, {"observations": "<f4"}),
        ("dqn", {"observations": ">i4"}, {"observations": "<i4"}),
        ("sac", {"observations": ">f8", "actions": ">f8"}, {"observations": "<f8", "actions": "<f8"}),
        ("ppo", {"observations": "longdouble", "actions": ">f4"}, {"observations": "<f8", "actions": "<f4"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()).replace(">", "big-"),
)
def test_trains_judges_and_resumes_as_with_plain_dtypes(
    algo: str, odd: dict[str, Any], plain: dict[str, Any], tmp_path: Path
) -> None:
    result, twin = trained(algo, tmp_path / "odd", **odd), trained(algo, tmp_path / "plain", **plain)
    assert result.checkpoint is not None
    assert twin.checkpoint is not None
    assert open_checkpoint(result.checkpoint).policy_sha256 == open_checkpoint(twin.checkpoint).policy_sha256

    judged = evaluate_checkpoint(result.checkpoint, episodes=2)
    assert judged.returns == evaluate_checkpoint(twin.checkpoint, episodes=2).returns

    resumed, other = (resume(run.checkpoint, track=False, total_timesteps=256) for run in (result, twin))
    assert resumed.num_timesteps == 256
    assert resumed.checkpoint is not None
    assert other.checkpoint is not None
    assert open_checkpoint(resumed.checkpoint).policy_sha256 == open_checkpoint(other.checkpoint).policy_sha256


def test_a_loaded_policy_takes_what_the_environment_returns(tmp_path: Path) -> None:
    result = trained("ppo", tmp_path / "run", observations=">f4")
    assert result.checkpoint is not None
    observation, _ = OddDtypes(observations=">f4").reset(seed=0)
    policy = load_policy(result.checkpoint)
    assert policy.act([observation]) == policy.act([observation.astype("<f4")])


def test_plain_spaces_are_left_as_they_are_and_odd_parts_replaced() -> None:
    plain = spaces.Dict({"b": spaces.Box(0, 1, (2,), np.float32), "a": spaces.Tuple([spaces.Discrete(3)])})
    assert make_plain_space(plain) is plain

    odd = spaces.Dict(
        [
            ("z", spaces.Tuple([spaces.Box(-np.inf, 1, (1,), np.dtype(">f8")), spaces.MultiBinary(2)])),
            ("d", spaces.Discrete(3, start=-1, dtype=np.dtype(">i4"))),  # type: ignore[arg-type]
            ("m", spaces.MultiDiscrete(np.array([2, 3], ">i8"), dtype=np.dtype(">i8"), start=np.array([1, 0], ">i8"))),  # type: ignore[arg-type]
        ]
    )
    native = make_plain_space(odd)
    assert native == spaces.Dict(
        {
            "z": spaces.Tuple([spaces.Box(-np.inf, 1, (1,), np.float64), spaces.MultiBinary(2)]),
            "d": spaces.Discrete(3, start=-1, dtype=np.int32),
            "m": spaces.MultiDiscrete([2, 3], start=[1, 0]),
        }
    )
    assert isinstance(native, spaces.Dict)
    assert list(native.spaces) == list(odd.spaces)
    assert space_from_json(space_to_json(native)) == native


def test_a_native_vector_environment_gets_actions_and_gives_observations_as_declared() -> None:
    seen = []

    class BigEndianRows(gym.vector.VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}  # noqa: RUF012
        num_envs = 2
        single_observation_space = spaces.Box(0, 9, (1,), np.dtype(">f4"))
        single_action_space = spaces.Box(-1, 1, (1,), np.dtype(">f4"))

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.array([[1], [2]], ">f4"), {}

        def step(self, actions: Any) -> Any:
            seen.append(actions)
            return np.array([[3], [4]], ">f4"), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}

    envs = NativeVectorEnv(config_from_mapping({**PPO, "algo": "ppo", "env_id": "rows"}), BigEndianRows())
    assert envs.single_observation_space == spaces.Box(0, 9, (1,), np.float32)
    assert envs.reset()[0].dtype == np.float32
    observation, *_ = envs.step(np.array([[0.5], [-0.5]], np.float32))
    assert observation.tolist() == [[3.0], [4.0]]
    assert observation.dtype == np.dtype("=f4")
    assert seen[0].dtype == np.dtype(">f4")
    assert seen[0].tolist() == [[0.5], [-0.5]]
