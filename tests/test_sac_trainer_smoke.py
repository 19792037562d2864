"""The SAC trainer on tiny environments with known answers. `test_dqn_trainer_smoke.py` tests the shared loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.sac import SACConfig
from rl_training.runtime.checkpoint import load_trainer_state, open_checkpoint
from rl_training.runtime.trainers.sac_trainer import SACTrainer, make_sac_trainer, train_sac
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy
from tests.off_policy_runs import Events, sac

SHORT: dict[str, Any] = {"total_timesteps": 48, "learning_starts": 20, "batch_size": 8, "logging": {"every": 1}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made(config: SACConfig, *callbacks: Any) -> SACTrainer:
    trainer = make_sac_trainer(config, callbacks)
    assert isinstance(trainer, SACTrainer)
    return trainer


@pytest.mark.parametrize("num_envs", [1, 4])
def test_each_step_of_an_environment_has_its_update(num_envs: int) -> None:
    events = Events()
    result = train_sac(sac(**SHORT, num_envs=num_envs), [events])
    blocks = list(range(num_envs, 49, num_envs))
    assert [seen for seen in events.seen if seen[0] in ("collect", "update")] == [
        (name, step) for step in blocks for name in ("collect", "update")
    ]
    assert events.values("train/updates") == {step: float(max(0, step - 20)) for step in blocks}
    assert set(events.values("train/updates_per_step").values()) == {1.0}
    for key in ("actor_loss", "critic_loss", "entropy_coef", "entropy_coef_loss", "learning_rate"):
        assert sorted(events.values(f"train/{key}")) == [step for step in blocks if step > 20]
    assert (result.num_timesteps, result.stop_reason) == (48, "completed")


def test_it_passes_what_a_policy_stuck_in_unit_bounds_can_reach_and_the_checkpoint_acts_the_same() -> None:
    """Actions lie in [0, 5] and [-pi/4, pi/4], the best one is [4, 0]; in [-1, 1] the return is at most -30."""
    trainer = made(sac(total_timesteps=1_500))
    result = trainer.train()
    assert result.metrics["eval/return_mean"] > -10.0
    assert result.checkpoint is not None
    assert evaluate_checkpoint(result.checkpoint, episodes=2).return_mean > -10.0
    observations = list(np.tile(np.arange(10, dtype=np.float32)[:, None] / 10, 4))
    actions = load_policy(result.checkpoint).act(observations)
    np.testing.assert_array_equal(actions, trainer.policy().act(observations))
    assert actions[0] == pytest.approx([4.0, 0.0], abs=0.8)


def test_warm_up_and_policy_actions_are_stored_on_one_scale() -> None:
    trainer = made(sac(**SHORT))
    handed_out: list[Any] = []
    to_env = trainer.envs.codec.to_env
    trainer.envs.codec.to_env = lambda actions: handed_out.append(to_env(actions)) or handed_out[-1]  # type: ignore[method-assign]
    trainer.train()
    stored, sent = trainer.buffer.actions[:48, 0], np.concatenate(handed_out)[:48]  # evaluation comes after
    assert np.abs(stored).max() <= 1.0
    assert np.abs(stored[:20]).max() > 0.9  # the warm-up draws from all of the space
    np.testing.assert_allclose(sent, np.array([2.5, 0.0]) + stored * np.array([2.5, np.pi / 4]), atol=1e-6)


@pytest.mark.parametrize("num_envs", [1, 4])
def test_an_environment_that_changes_the_action_it_is_given_changes_no_stored_one(num_envs: int) -> None:
    trainer = made(sac("MutatesAction", **SHORT, num_envs=num_envs))
    trainer.train()
    actions, rewards = trainer.buffer.actions[: 48 // num_envs], trainer.buffer.rewards[: 48 // num_envs]
    assert 0.9 < np.abs(actions).max() <= 1.0
    np.testing.assert_allclose(rewards, -10 * np.abs(actions).sum(axis=-1), rtol=1e-5)


@pytest.mark.parametrize(
    ("env", "fields", "terminated", "truncated"),
    [
        ("AsymAct", {}, True, False),
        ("Pendulum-v1", {"max_episode_steps": 10}, False, True),
        ("AsymAct", {"max_episode_steps": 10}, True, True),
        ("Pendulum-v1", {}, False, False),
    ],
)
def test_the_flags_are_stored_apart(env: str, fields: dict[str, Any], terminated: bool, truncated: bool) -> None:
    trainer = made(sac(env, **SHORT, num_envs=2, **fields))
    trainer.train()
    last = (np.arange(24) % 10 == 9)[:, None]
    np.testing.assert_array_equal(trainer.buffer.terminated[:24], np.tile(last & terminated, 2))
    np.testing.assert_array_equal(trainer.buffer.truncated[:24], np.tile(last & truncated, 2))


def test_a_fixed_entropy_weight_stays_and_a_learned_one_moves() -> None:
    fixed, learned = Events(), Events()
    train_sac(sac(**SHORT, entropy_coef=0.2), [fixed])
    train_sac(sac(**SHORT, initial_entropy_coef=0.5), [learned])
    assert list(fixed.values("train/entropy_coef").values()) == pytest.approx([0.2] * 28)
    weights = list(learned.values("train/entropy_coef").values())
    assert weights[0] == pytest.approx(0.5, rel=0.01)
    assert weights[-1] != weights[0]


def test_the_checkpoint_holds_critics_targets_and_all_three_optimisers() -> None:
    result = train_sac(sac(**SHORT))
    assert result.checkpoint is not None
    state = load_trainer_state(open_checkpoint(result.checkpoint))
    assert (state["updates"], state["measured"]["updates"]) == (28, 0)
    for name in ("actor_optimizer", "critic_optimizer", "alpha_optimizer"):
        assert state["algorithm"][name]["steps"] == 28
    assert float(state["algorithm"]["log_alpha"]) < 0.0
    assert state["algorithm"]["critics"].keys() == state["algorithm"]["targets"].keys()
