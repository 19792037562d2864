"""Native environments continue within their episodes after a resume, to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from benchmarks.resume.run_comparison import find_differences
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.native.masked_cartpole import MaskedCartPole
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import CheckpointError, EnvironmentFault
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.checkpoint.plain_state import from_plain, to_plain
from rl_training.runtime.trainer import TrainResult
from rl_training.tracking.metric_log import MetricLog
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()
NORMALISED = {"normalization": {"observation": True, "reward": True}}


def settings(env_id: str = "CartPole-v1", **fields: Any) -> PPOConfig:
    fields = {"num_envs": 4, "rollout_steps": 256, "vectorization": "native", **fields}
    return PPOConfig(env_id=env_id, total_timesteps=100, **fields)


def started(config: PPOConfig) -> TrainingEnvs:
    envs = TrainingEnvs(config, gamma=0.9)
    envs.start()
    return envs


def resumed(envs: TrainingEnvs, state: dict[str, Any] | None = None) -> tuple[TrainingEnvs, list[int]]:
    """Environments of another process that continue from a checkpoint, and those that began a fresh episode."""
    again = TrainingEnvs(envs._config, gamma=0.9)
    return again, again.load_state_dict(from_plain(to_plain(state or envs.state_dict(), copy=True)))


def play(envs: TrainingEnvs, actions: Any) -> list[Any]:
    """Steps with each row of actions [T, N]; returns all that a trainer sees, as bytes."""
    seen: list[Any] = []
    for row in actions:
        step = envs.step(row)
        arrays = (*step[:-2], envs.observation, envs.normalized())
        seen.append(([array.tobytes() for array in arrays], step.episodes))
    return seen


def bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list):
        return [bits(part) for part in value]
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@given(
    seed=st.integers(0, 2**31 - 1),
    num_envs=st.sampled_from([1, 2, 3, 8, 33]),
    before=st.integers(0, 80),
    limit=st.sampled_from([None, 1, 7, 30]),
    fields=st.sampled_from([{}, NORMALISED, {"reset_options": {"low": -0.01, "high": 0.1}}]),
)
@example(seed=160037, num_envs=33, before=53, limit=1, fields=NORMALISED)  # sums depended on the order in memory
@limits(max_examples=25, deadline=None)
def test_cartpole_continues_to_the_same_bytes_after_any_number_of_steps(
    seed: int, num_envs: int, before: int, limit: int | None, fields: dict[str, Any]
) -> None:
    config = settings(seed=seed, num_envs=num_envs, max_episode_steps=limit, **fields)
    actions = np.random.default_rng(seed).integers(0, 2, (before + 60, num_envs))
    envs = started(config)
    play(envs, actions[:before])
    again, fresh = resumed(envs)
    assert fresh == []
    assert bits(again.state_dict()) == bits(envs.state_dict())
    assert again.observation.tobytes() == envs.observation.tobytes()
    seen = play(envs, actions[before:])
    assert play(again, actions[before:]) == seen
    assert sum(len(episodes) for _, episodes in seen) >= num_envs
    assert bits(resumed(again)[0].state_dict()) == bits(envs.state_dict())


def test_the_first_episode_after_a_resume_counts_its_steps_from_before() -> None:
    envs = started(settings(num_envs=2, max_episode_steps=6))
    play(envs, np.zeros((4, 2), int))
    again, _ = resumed(envs)
    steps = [again.step(np.ones(2, int)) for _ in range(2)]
    assert [step.episodes for step in steps] == [[], [(0, 6.0, 6, {}), (1, 6.0, 6, {})]]
    assert steps[1].truncated.all()


def test_attributes_and_options_that_callbacks_have_set_come_back_with_the_episodes() -> None:
    envs = started(settings())
    play(envs, np.ones((3, 4), int))
    envs.set_attr("force_mag", 3.0)
    envs.set_reset_options({"low": 0.01, "high": 0.02})
    play(envs, np.ones((2, 4), int))
    again, fresh = resumed(envs)
    assert (fresh, again.get_attr("force_mag")) == ([], (3.0,) * 4)
    assert bits(again.state_dict()) == bits(envs.state_dict())
    actions = np.ones((40, 4), int)
    assert play(again, actions) == play(envs, actions)
    assert again.inexact_changes() == []


@pytest.mark.parametrize("mode", ["DISABLED", "SAME_STEP"])
def test_an_environment_of_your_own_continues_by_its_two_methods(mode: str) -> None:
    envs = started(settings("case_envs:KeptRows-v0", env_kwargs={"mode": mode}))
    actions = np.arange(48).reshape(12, 4) % 2
    play(envs, actions[:4])
    state = to_plain(envs.state_dict(), copy=True)
    after = play(envs, actions[4:])  # changes the arrays that the environment has returned as its state
    again, fresh = resumed(envs, state)
    assert fresh == []
    assert play(again, actions[4:]) == after


def test_what_an_environment_of_your_own_raises_names_the_method() -> None:
    envs = started(settings("case_envs:KeptRows-v0"))
    state = envs.state_dict()
    state["snapshots"][0]["state"] = {"rows": np.zeros((4, 2), np.float32)}
    with pytest.raises(EnvironmentFault, match="load_state_dict raised KeyError: 'life'"):
        resumed(envs, state)


def earlier(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state as earlier versions saved it."""
    snapshots = [{k: v for k, v in snap.items() if k not in ("state", "observation")} for snap in state["snapshots"]]
    return {**{key: value for key, value in state.items() if key != "running"}, "snapshots": snapshots}


def test_a_checkpoint_of_an_earlier_version_begins_fresh_episodes_from_its_random_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    envs = started(settings(**NORMALISED))
    play(envs, np.ones((30, 4), int))
    (again, fresh), (twice, _) = (resumed(envs, earlier(envs.state_dict())) for _ in range(2))
    assert fresh == [0, 1, 2, 3]
    assert again.observation.tolist() == twice.observation.tolist()
    assert np.abs(again.observation).max() <= 0.05
    assert again.observation.tolist() != started(settings()).observation.tolist()
    assert "the state of its 4 native environments can't be restored; each begins a fresh episode" in caplog.messages[0]
    assert again._envs.life_steps == 30
    assert again.observation_normalizer is not None
    assert again.observation_normalizer.statistics.count == 120
    assert again.reward_normalizer is not None
    assert again.reward_normalizer.returns.tolist() == [0.0] * 4
    episodes = [episode for _, ended in play(again, np.ones((15, 4), int)) for episode in ended]
    assert all(episode.return_ == episode.length for episode in episodes)
    assert len(episodes) >= 4


def test_an_environment_without_the_methods_begins_fresh_episodes() -> None:
    envs = started(settings("case_envs:Rows-v0"))
    assert resumed(envs)[1] == [0, 1, 2, 3]
    assert "state" not in envs.state_dict()["snapshots"][0]


def test_a_checkpoint_of_another_number_of_environments_is_refused() -> None:
    envs = started(settings())
    with pytest.raises(CheckpointError, match="has 4 environments; the settings have 3"):
        TrainingEnvs(settings(num_envs=3), gamma=0.9).load_state_dict(envs.state_dict())


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("state", {"steps": np.zeros(4, np.int32)}, "native state.state: is required and missing"),
        ("state", "text", "state: got 'text'"),
        (
            "state",
            {"state": np.zeros((4, 3)), "steps": np.zeros(4, np.int32)},
            r"float64 \(4, 3\), expected .*\(4, 4\)",
        ),
        ("state", {"state": np.full((4, 4), np.nan), "steps": np.zeros(4, np.int32)}, "has a NaN or infinity"),
        ("state", {"state": np.zeros((4, 4)), "steps": np.zeros(4)}, r"steps: got float64 \(4,\), expected int32"),
        ("state", {"state": np.zeros((4, 4)), "steps": np.full(4, -1, np.int32)}, "not between 0 and 500 steps"),
        ("state", {"state": np.zeros((4, 4)), "steps": np.full(4, 500, np.int32)}, "not between 0 and 500 steps"),
        ("observation", np.zeros((4, 4)), r"observation: got float64 \(4, 4\), expected float32"),
        ("observation", [0.0], "observation: got a list"),
    ],
)
def test_a_received_state_of_another_form_is_refused(part: str, value: Any, words: str) -> None:
    envs = started(settings())
    state = envs.state_dict()
    state["snapshots"][0][part] = value
    with pytest.raises(CheckpointError, match=words):
        resumed(envs, state)


@pytest.mark.parametrize(
    ("name", "value"), [("lengths", np.full(4, 9)), ("lengths", np.full(4, -1)), ("returns", np.full(4, np.nan))]
)
def test_received_counts_of_no_episode_are_refused(name: str, value: Any) -> None:
    envs = started(settings())
    state = envs.state_dict()
    state["running"][name] = value
    with pytest.raises(CheckpointError, match=f"running/{name}"):
        resumed(envs, state)


def test_a_row_between_its_steps_is_never_marked_as_done() -> None:
    """So a state without the marks is complete: a row that is reset by mask loses its mark."""
    envs = MaskedCartPole(3, max_episode_steps=2)
    envs.reset(seed=1)
    for _ in range(2):
        envs.step(np.zeros(3, int))
    assert envs.prev_done.all()
    envs.reset(options={"reset_mask": np.ones(3, bool)})
    assert not envs.prev_done.any()


COMMON: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "vectorization": "native",
    "num_envs": 4,
    "seed": 3,
    "total_timesteps": 600,
    "network": {"hidden": [8]},
    "logging": {"every": 40},
    "evaluation": {"every": 200, "episodes": 1, "max_episode_steps": 20, "video": False},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 32, "batch_size": 64, "epochs": 2, **NORMALISED},
    "dqn": {"buffer_size": 300, "learning_starts": 60, "batch_size": 16, "train_freq": 8, "n_step": 2},
}


@pytest.mark.parametrize("polls", [37, 61, 75])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_that_stops_within_episodes_ends_as_the_run_that_never_stopped(
    algo: str, polls: int, tmp_path: Path
) -> None:
    def train(name: str, **stop: Any) -> TrainResult:
        run_dir = tmp_path / name
        config = config_from_mapping({"algo": algo, **COMMON, **ALGORITHMS[algo], "run_dir": str(run_dir)})
        return MANAGER.setup(config, [MetricLog(run_dir)], **stop).train()

    assert train("whole").stop_reason == "completed"
    stopped = train("stopped", stop=StopAfterPolls(polls))
    assert 60 < stopped.num_timesteps < 600
    trainer = MANAGER.resume(stopped.run_dir, [MetricLog(stopped.run_dir)])
    assert trainer.train().stop_reason == "completed"
    assert trainer.inexact == []
    assert find_differences(tmp_path / "whole", stopped.run_dir) == []
