"""The DQN trainer, and with it the off-policy loop, on tiny environments with known answers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.api.train_and_resume import train
from rl_training.api.training import check_environment
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.envs.validation.validate import validate_env
from rl_training.errors import ConfigError, EnvironmentFault, EnvironmentRefused
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.callbacks import CallbackError, TrainerState
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.runtime.trainers.dqn_trainer import DQNTrainer, make_dqn_trainer, train_dqn
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.off_policy_runs import Events, dqn, sac

SHORT: dict[str, Any] = {"total_timesteps": 24, "learning_starts": 10, "batch_size": 8, "train_freq": 8}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made(config: DQNConfig, *callbacks: Any) -> DQNTrainer:
    trainer = make_dqn_trainer(config, callbacks)
    assert isinstance(trainer, DQNTrainer)
    return trainer


def test_a_run_goes_through_its_events_in_order_and_leaves_what_it_says() -> None:
    events = Events()
    config = dqn(**SHORT, logging={"every": 1}, checkpoint={"every": 20}, evaluation={"every": 24, "episodes": 2})
    result = train_dqn(config, [events])
    assert events.seen == [
        ("start", 0),
        ("checkpoint", 0),
        ("collect", 8),
        ("update", 8),
        ("collect", 16),
        ("update", 16),
        ("checkpoint", 20),
        ("collect", 24),
        ("update", 24),
        ("eval", 24),
        ("checkpoint", 24),
        ("end", 24),
    ]
    assert events.values("train/updates") == {8: 0.0, 16: 1.0, 24: 2.0}
    assert sorted(events.values("train/q_loss")) == [16, 24]
    assert set(events.values("train/updates_per_step").values()) == {1 / 8}
    assert (result.num_timesteps, result.stop_reason) == (24, "completed")
    assert result.checkpoint == result.best_checkpoint == result.run_dir / "checkpoints" / "step_000000000024"
    assert json.loads((result.run_dir / "metadata.json").read_text())["run_uid"] == result.run_uid
    assert {"rollout/episode_return_mean", "eval/return_mean", "train/learning_rate"} <= set(result.metrics)


@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize(("train_freq", "gradient_steps", "updates"), [(4, 3, 60), (3, 1, 27), (25, 50, 200)])
def test_updates_per_environment_step_do_not_depend_on_the_number_of_environments(
    num_envs: int, train_freq: int, gradient_steps: int, updates: int
) -> None:
    """In 100 steps of which 20 are warm-up, with fewer and with more environments than steps in a block."""
    config = dqn(
        num_envs=num_envs,
        total_timesteps=100,
        learning_starts=20,
        batch_size=8,
        train_freq=train_freq,
        gradient_steps=gradient_steps,
    )
    trainer = made(config)
    assert trainer.train().num_timesteps == 100
    assert trainer.updates == trainer.algorithm.state_dict()["optimizer"]["steps"] == updates


@pytest.mark.parametrize(("total", "ends_at"), [(40, 40), (41, 45), (50, 50)])
def test_training_ends_at_the_total_or_less_than_one_vector_step_beyond(total: int, ends_at: int) -> None:
    assert train_dqn(dqn(**{**SHORT, "total_timesteps": total}, num_envs=5)).num_timesteps == ends_at


@pytest.mark.parametrize(("num_envs", "copies"), [(1, 10), (2, 10), (25, 4)])
def test_the_target_is_copied_by_environment_steps(num_envs: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(dqn(**{**SHORT, "total_timesteps": 100}, num_envs=num_envs, target_update_every=10))
    seen: list[int] = []
    copy = trainer.algorithm.update_target
    monkeypatch.setattr(trainer.algorithm, "update_target", lambda: (seen.append(trainer.num_timesteps), copy()))
    trainer.train()
    assert len(seen) == copies
    assert all(step // 10 > (step - num_envs) // 10 for step in seen)


@pytest.mark.parametrize("env", ["Plain", "OffsetAct"])
def test_it_learns_the_best_return_and_the_checkpoint_acts_the_same(env: str) -> None:
    result = train_dqn(dqn(env, num_envs=2))
    assert result.metrics["eval/return_mean"] == 10.0
    assert result.checkpoint is not None
    assert evaluate_checkpoint(result.checkpoint, episodes=3).returns == (10.0, 10.0, 10.0)


@pytest.mark.parametrize("env", ["DiscreteObs", "DictObs", "SmallImage"])
def test_discrete_dict_and_image_observations_are_learnt_from(env: str) -> None:
    config = dqn(env, total_timesteps=80, learning_starts=40, batch_size=8, n_step=3, dueling=True, double=True)
    result = train_dqn(config)
    assert result.checkpoint is not None
    evaluation = evaluate_checkpoint(result.checkpoint, episodes=2)
    assert evaluation.lengths == (10, 10)
    assert 0 <= evaluation.return_mean <= 10


@pytest.mark.parametrize(
    ("env", "terminated", "truncated"),
    [("EndsAtTen", True, False), ("CutAtTen", False, True), ("BothFlags", True, True), ("Endless", False, False)],
)
def test_the_flags_and_the_true_final_observation_are_stored(env: str, terminated: bool, truncated: bool) -> None:
    trainer = made(dqn(env, total_timesteps=40, num_envs=2, learning_starts=30))
    trainer.train()
    buffer, last = trainer.buffer, np.arange(20) % 10 == 9
    np.testing.assert_array_equal(buffer.terminated[:20], np.outer(last & terminated, [True, True]))
    np.testing.assert_array_equal(buffer.truncated[:20], np.outer(last & truncated, [True, True]))
    if env in ("EndsAtTen", "BothFlags"):  # feature 0 shows the step: 10 at the end, not 0 of the next episode
        np.testing.assert_allclose(buffer.next_obs[:20, 0, 0], np.tile(np.arange(1, 11) / 10, 2), rtol=1e-6)


@pytest.mark.parametrize(("env", "first_value"), [("CutAtTen", 10.0), ("EndsAtTen", 6.5132), ("BothFlags", 6.5132)])
def test_learned_values_on_fixed_length_episodes(env: str, first_value: float) -> None:
    """With gamma 0.9: 1 / (1 - 0.9) where the episode is cut, (1 - 0.9**10) / (1 - 0.9) where it ends."""
    trainer = made(dqn(env, num_envs=4, gamma=0.9, total_timesteps=8_000, train_freq=2, target_update_every=50))
    trainer.train()
    first = np.full((1, 4), 0.5, np.float32)
    first[:, 0] = 0.0 if env != "CutAtTen" else 0.5
    assert trainer.algorithm.q_values(first).max() == pytest.approx(first_value, rel=0.05)


@pytest.mark.parametrize("num_envs", [1, 4])
def test_transitions_of_an_environment_that_reuses_its_array_are_stored_right(num_envs: int) -> None:
    trainer = made(dqn("SharedArray", total_timesteps=80, num_envs=num_envs, learning_starts=40))
    trainer.train()
    rows = 80 // num_envs
    np.testing.assert_array_equal(trainer.buffer.next_obs[:rows, :, 0] - trainer.buffer.obs[:rows, :, 0], 1.0)


def test_stored_observations_are_raw_and_those_learnt_from_are_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(
        dqn(
            "EndsAtTen",
            total_timesteps=60,
            learning_starts=40,
            normalization={"observation": True, "reward": True},
        )
    )
    seen: list[Any] = []
    update = trainer.algorithm.update
    monkeypatch.setattr(
        trainer.algorithm, "update", lambda batch, progress: seen.append(batch) or update(batch, progress)
    )
    trainer.train()
    assert set(np.unique(trainer.buffer.rewards[:60])) == {1.0}
    np.testing.assert_allclose(np.unique(trainer.buffer.obs[:60, 0, 0]), np.arange(10) / 10, rtol=1e-6)
    normalizer, scaler = trainer.envs.observation_normalizer, trainer.envs.reward_normalizer
    assert normalizer is not None
    assert scaler is not None
    levels = np.full((11, 4), 0.5, np.float32)
    levels[:, 0] = np.arange(11) / 10
    expected = normalizer.normalize(levels)[:, 0]
    for batch in (seen[-1].obs, seen[-1].next_obs):
        assert np.isin(batch[:, 0], expected).all()
    np.testing.assert_array_equal(seen[-1].rewards, scaler.normalize(np.ones(1))[0])


def test_how_often_one_evaluates_logs_or_saves_changes_no_weight() -> None:
    fields: dict[str, Any] = {"total_timesteps": 300, "num_envs": 2, "n_step": 2}
    seldom = train_dqn(dqn("SeedEcho", **fields))
    cadences = {"evaluation": {"every": 30, "episodes": 2}, "logging": {"every": 10}, "checkpoint": {"every": 70}}
    often = train_dqn(dqn("SeedEcho", **fields, **cadences))
    assert seldom.checkpoint is not None
    assert often.checkpoint is not None
    assert open_checkpoint(seldom.checkpoint).policy_sha256 == open_checkpoint(often.checkpoint).policy_sha256


class FailsAt(Events):
    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def on_update_end(self, state: TrainerState) -> None:
        if state.iteration == self.iteration:
            raise OSError("the plotter is on fire")


def test_a_callbacks_error_fails_the_run_after_a_checkpoint() -> None:
    events = Events()
    with pytest.raises(CallbackError, match="the plotter is on fire"):
        train_dqn(dqn(**SHORT), [events, FailsAt(2)])
    assert events.seen[-2:] == [("checkpoint", 16), ("end", 16)]


def test_a_nan_observation_ends_the_run_at_that_step() -> None:
    with pytest.raises(EnvironmentFault, match=r"NanObs-v0.* 137.*feature 1"):
        train_dqn(dqn("NanObs", total_timesteps=1_000, learning_starts=50))


def test_a_buffer_that_cannot_fit_is_refused_with_the_arithmetic(home: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        train_dqn(dqn("BigImage", buffer_size=1_000_000_000))
    for word in ("1,000,000,000 x (2 x 28,224 + 8 + 4 + 2) bytes", "= 56462.0 GB", "buffer_size"):
        assert word in str(refused.value)
    size = int(re.findall(r"buffer_size ([\d,]+) would fit", str(refused.value))[0].replace(",", ""))
    assert 0 < size < 1_000_000_000
    assert not list((home / "runs").iterdir())


def test_frames_stay_bytes_in_a_buffer_that_fits() -> None:
    trainer = made(
        dqn(
            "BigImage",
            buffer_size=1_000,
            total_timesteps=44,
            learning_starts=40,
            batch_size=4,
            evaluation={"every": 99},
        )
    )
    assert (trainer.buffer.obs.dtype, trainer.buffer.obs.shape) == (np.uint8, (1_000, 1, 4, 84, 84))
    result = trainer.train()
    assert (result.num_timesteps, result.metrics["eval/episodes"], trainer.updates) == (44, 10.0, 1)


@pytest.mark.parametrize(
    ("env", "algorithm", "words"),
    [
        ("MultiDiscAct", "dqn", ("MultiDiscrete", "ppo")),
        ("MultiDiscAct", "sac", ("MultiDiscrete", "ppo")),
        ("Plain", "sac", ("Discrete(2)", "ppo", "dqn")),
        ("AsymAct", "dqn", ("Box", "ppo", "sac", "td3", "tqc")),
        ("UnboundedAct", "sac", ("Box", "ppo")),
    ],
)
def test_actions_without_a_head_are_refused_with_the_algorithms_that_would_do(
    env: str, algorithm: str, words: tuple[str, ...]
) -> None:
    config = {"dqn": dqn, "sac": sac}[algorithm](env)
    assert not validate_env(config, get_algorithm(algorithm).check_spaces).ok
    with pytest.raises(EnvironmentRefused) as refused:
        check_environment(config)
    for word in (algorithm, *words):
        assert word in str(refused.value)


def test_a_complete_run_is_evaluated_on_held_out_episodes() -> None:
    summary = train(dqn(evaluation={"every": 3_000, "episodes": 2, "final_episodes": 5, "video": False}), track=False)
    assert summary.evaluation is not None
    assert summary.evaluation.returns == (10.0,) * 5
    assert (summary.num_timesteps, summary.stop_reason) == (3_000, "completed")
