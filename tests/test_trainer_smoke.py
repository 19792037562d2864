"""The PPO trainer on tiny environments with known answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.serialization import WrittenConfig
from rl_training.errors import CheckpointError, EnvironmentFault, UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import Callback, CallbackError, TrainerState
from rl_training.runtime.checkpoint import load_policy_state, newest_good, open_checkpoint, write_checkpoint
from rl_training.runtime.trainers.ppo_trainer import train_ppo
from rl_training.runtime.workflows import evaluate_checkpoint


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def plain(env: str = "Plain", **fields: Any) -> PPOConfig:
    base: dict[str, Any] = {
        "env_id": f"case_envs:{env}-v0",
        "num_envs": 2,
        "rollout_steps": 32,
        "batch_size": 16,
        "epochs": 2,
        "total_timesteps": 256,
        "learning_rate": 0.003,
        "seed": 7,
        "logging": {"every": 1},
        "evaluation": {"every": 128, "episodes": 4, "num_envs": 2},
        "checkpoint": {"every": 100},
    }
    return PPOConfig.model_validate({**base, **fields})


class Events(Callback):
    """Records the events of training."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.metrics: dict[str, float] = {}
        self.end: TrainerState | None = None

    def on_train_start(self, state: TrainerState) -> None:
        self.seen.append(("start", state.num_timesteps))

    def on_collect_end(self, state: TrainerState) -> None:
        self.seen.append(("collect", state.num_timesteps))

    def on_update_end(self, state: TrainerState) -> None:
        self.seen.append(("update", state.num_timesteps))
        self.metrics.update(state.metrics)

    def on_eval_end(self, state: TrainerState) -> None:
        self.seen.append(("eval", state.num_timesteps))
        self.metrics.update(state.metrics)

    def on_checkpoint_end(self, state: TrainerState) -> None:
        self.seen.append(("checkpoint", state.num_timesteps))

    def on_train_end(self, state: TrainerState) -> None:
        self.seen.append(("end", state.num_timesteps))
        self.end = state


def test_a_run_goes_through_its_events_in_order_and_leaves_what_it_says() -> None:
    events = Events()
    result = train_ppo(plain(total_timesteps=128), [events])
    assert events.seen == [
        ("start", 0),
        ("checkpoint", 0),
        ("collect", 64),
        ("update", 64),
        ("checkpoint", 100),
        ("collect", 128),
        ("update", 128),
        ("eval", 128),
        ("checkpoint", 128),
        ("end", 128),
    ]
    assert (result.num_timesteps, result.stop_reason) == (128, "completed")
    assert result.checkpoint == result.best_checkpoint == result.run_dir / "checkpoints" / "step_000000000128"
    assert json.loads((result.run_dir / "metadata.json").read_text())["run_uid"] == result.run_uid
    assert {"rollout/episode_return_mean", "train/policy_loss", "eval/return_mean"} <= set(result.metrics)
    assert result.cpu_seconds > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        # A policy's and a value's layer of 1e7 * 1e7 weights of 4 bytes.
        ({"network": {"hidden": [10**7, 10**7]}}, "you tried to allocate 800000000000000 bytes"),
        ({"network": {"hidden": [10**18]}}, "Storage size calculation overflowed"),
    ],
)
def test_settings_too_large_for_the_memory_are_refused_in_one_line(
    fields: dict[str, Any], words: str, home: Path
) -> None:
    with pytest.raises(UserError) as refused:
        DefaultExperimentManager().setup(plain(**fields))
    message = str(refused.value)
    assert message.startswith("the networks and buffers of these settings do not fit into memory: ")
    assert words in message
    assert message.endswith(
        f"lower what makes them large: num_envs = 2, rollout_steps = 32, network.hidden = {fields['network']['hidden']}"
    )
    assert "\n" not in message
    assert not list((home / "runs").rglob("metadata.json"))


def test_it_learns_the_best_return() -> None:
    result = train_ppo(plain(total_timesteps=4096, learning_rate=0.01, evaluation={"every": 4096, "episodes": 4}))
    assert result.metrics["eval/return_mean"] == 10.0
    assert result.checkpoint is not None
    assert evaluate_checkpoint(result.checkpoint, episodes=3).returns == (10.0, 10.0, 10.0)


@pytest.mark.parametrize(("total", "ends_at"), [(200, 200), (201, 202), (64, 64), (1, 2)])
def test_training_ends_at_the_total_or_less_than_one_vector_step_beyond(total: int, ends_at: int) -> None:
    assert train_ppo(plain(total_timesteps=total)).num_timesteps == ends_at


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_episodes_are_counted_right_across_resets(num_envs: int) -> None:
    fields = {"num_envs": num_envs, "rollout_steps": 20, "batch_size": 10, "total_timesteps": 20 * num_envs}
    result = train_ppo(plain("FixedLen3", **fields))
    assert result.metrics["rollout/episode_return_mean"] == 3.0
    assert result.metrics["rollout/episode_length_mean"] == 3.0
    assert result.metrics["rollout/episodes"] == num_envs * (20 // 3)
    one = train_ppo(plain("OneStep", **fields))
    assert (one.metrics["rollout/episode_return_mean"], one.metrics["rollout/episodes"]) == (1.0, 20.0 * num_envs)


def test_how_often_one_evaluates_logs_or_saves_changes_no_weight() -> None:
    seldom = train_ppo(plain("SeedEcho"))
    often = train_ppo(
        plain("SeedEcho", evaluation={"every": 10, "episodes": 2}, logging={"every": 100}, checkpoint={"every": 7})
    )
    assert seldom.checkpoint is not None
    assert often.checkpoint is not None
    assert open_checkpoint(seldom.checkpoint).policy_sha256 == open_checkpoint(often.checkpoint).policy_sha256


def test_the_best_checkpoint_holds_the_policy_that_was_evaluated() -> None:
    result = train_ppo(plain(total_timesteps=512, evaluation={"every": 64, "episodes": 2}))
    assert result.best_checkpoint is not None
    best = json.loads((result.run_dir / "checkpoints" / "best.json").read_text())
    seeds = evaluate_checkpoint(result.best_checkpoint, episodes=2)
    assert seeds.return_mean == best["return_mean"]


class FailsAt(Callback):
    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_update_end(self, state: TrainerState) -> None:
        if state.iteration == self.iteration:
            raise OSError("the plotter is on fire")


def test_a_callbacks_error_fails_the_run_after_a_checkpoint() -> None:
    events = Events()
    with pytest.raises(CallbackError, match="the plotter is on fire"):
        train_ppo(plain(), [events, FailsAt(2)])
    assert events.seen[-2:] == [("checkpoint", 128), ("end", 128)]
    assert events.end is not None
    assert events.end.stop_reason == "failed"
    assert "the plotter is on fire" in str(events.end.error)


def test_a_nan_observation_ends_the_run_at_that_step_and_spoils_no_weight(home: Path) -> None:
    events = Events()
    with pytest.raises(EnvironmentFault) as error:
        train_ppo(plain("NanObs", num_envs=1, batch_size=32, total_timesteps=1000), [events])
    for word in ("case_envs:NanObs-v0", "137", "feature 1"):
        assert word in str(error.value)
    assert [name for name, _ in events.seen].count("end") == 1
    run_dir = events.end.run_dir if events.end else home
    newest, skipped = newest_good(run_dir / "checkpoints")
    assert newest is not None
    assert (newest.num_timesteps, skipped) == (128, [])  # saved as the best so far, evaluated at 128
    weights = load_policy_state(newest)["weights"]
    assert all(np.isfinite(np.asarray(tensor)).all() for tensor in weights.values())


@pytest.mark.parametrize(("env", "first_value"), [("CutAtTen", 10.0), ("EndsAtTen", 6.5132), ("BothFlags", 6.5132)])
def test_learned_values_on_fixed_length_episodes(env: str, first_value: float) -> None:
    """With gamma 0.9: 1 / (1 - 0.9) where the episode is cut, (1 - 0.9**10) / (1 - 0.9) where it ends."""
    config = plain(
        env,
        num_envs=4,
        rollout_steps=64,
        batch_size=64,
        epochs=10,
        gamma=0.9,
        learning_rate=0.003,
        normalization={"reward": False},
        total_timesteps=16_384,
        evaluation={"every": 100_000, "episodes": 1},
        checkpoint={"every": 100_000},
    )
    trainer = DefaultExperimentManager().setup(config)
    trainer.train()
    first = np.full((4, 4), 0.5, np.float32)
    first[:, 0] = 0.0 if env != "CutAtTen" else 0.5
    assert trainer.algorithm.value(first)[0] == pytest.approx(first_value, rel=0.05)  # type: ignore[attr-defined]


class BreaksAfterSaving(Callback):
    """Raises when the checkpoint of the second evaluation is complete."""

    def on_checkpoint_end(self, state: TrainerState) -> None:
        if state.num_timesteps >= 256 and state.evaluation is not None:
            raise OSError("no paper")


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_breaks_at_its_best_checkpoint_still_knows_it(lost: bool) -> None:
    events = Events()
    fields = {"total_timesteps": 512, "evaluation": {"every": 256, "episodes": 2}, "checkpoint": {"every": 10_000}}
    with pytest.raises(CallbackError, match="no paper"):
        train_ppo(plain(**fields), [events, BreaksAfterSaving()])
    assert events.end is not None
    record = events.end.run_dir / "checkpoints" / "best.json"
    best = json.loads(record.read_text())
    assert best["num_timesteps"] == 256
    if lost:
        record.unlink()  # as where the process was killed between the two writes
    DefaultExperimentManager().resume(events.end.run_dir)
    assert json.loads(record.read_text()) == best


def test_a_trainer_state_without_its_parts_is_refused_by_name(tmp_path: Path) -> None:
    config = plain()
    whole = train_ppo(config)
    assert whole.checkpoint is not None
    policy = load_policy_state(open_checkpoint(whole.checkpoint))
    fields = {"config": WrittenConfig(config), "run_uid": "x", "algorithm": "ppo", "num_timesteps": 256}
    foreign = write_checkpoint(tmp_path / "checkpoints", policy=policy, trainer={"step": 1}, **fields)
    with pytest.raises(CheckpointError, match=r"trainer\.pt is refused: it does not hold the state of ppo \(KeyError"):
        DefaultExperimentManager().resume(foreign)
