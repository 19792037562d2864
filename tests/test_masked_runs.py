"""Runs with action masks: no forbidden action is ever taken, and a resumed run equals the uninterrupted one."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import mlflow.pyfunc
import numpy as np
import pytest

import rl_training
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import find_checkpoint, load_policy_state, load_trainer_state, open_checkpoint
from rl_training.runtime.fine_tuning import carry_over
from rl_training.runtime.network_trainer import read_spaces
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.pyfunc import check_model, save_model
from tests.off_policy_runs import Events
from tests.stop_flags import StopAfterPolls
from tests.test_recurrent_resume import describe

MANAGER = DefaultExperimentManager()
COMMON: dict[str, Any] = {
    "seed": 7,
    "num_envs": 2,
    "network": {"hidden": [16]},
    "learning_rate_schedule": "linear",
    "normalization": {"observation": True, "reward": True},
    "logging": {"every": 20},
    "evaluation": {"every": 60, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 10**6},
}
OFF_POLICY: dict[str, Any] = {
    "learning_starts": 40,
    "total_timesteps": 160,
    "buffer_size": 100,
    "batch_size": 16,
    "train_freq": 8,
    "gradient_steps": 5,
    "target_update_every": 30,
    "n_step": 3,
}
ROLLOUTS: dict[str, Any] = {"rollout_steps": 16, "batch_size": 16, "epochs": 2, "total_timesteps": 104}
MEMORY: dict[str, Any] = {"network": {"hidden": [8], "recurrent": "lstm", "recurrent_size": 6}, "sequence_length": 8}


def dqn(**fields: Any) -> DQNConfig:
    given = {"env_id": "case_envs:Strict-v0", "action_mask": "info", **COMMON, **OFF_POLICY, **fields}
    return DQNConfig.model_validate(given)


def ppo(**fields: Any) -> PPOConfig:
    given = {"env_id": "case_envs:Strict-v0", "action_mask": "info", **COMMON, **ROLLOUTS, **fields}
    return PPOConfig.model_validate(given)


SHOWN: dict[str, Any] = {"action_mask": "legal", "env_kwargs": {"in_observation": True}}
PARTS = "case_envs:StrictParts-v0"
CONFIGS: dict[str, TrainConfig] = {
    "dqn": dqn(double=True, dueling=True),
    "dqn by priority of masks in observations": dqn(quantiles=5, double=True, prioritized_replay={}, **SHOWN),
    "dqn with targets ahead": dqn(batch_size=48, gradient_steps=20, network={"hidden": [16, 16]}),
    "ppo": ppo(),
    "ppo of several choices": ppo(env_id=PARTS),
    "ppo of several choices shown": ppo(env_id=PARTS, **SHOWN),
    "ppo with a memory": ppo(**MEMORY),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def bits(result: TrainResult) -> tuple[str, str]:
    """The policy's hash, and the training state as text, without the times of callbacks."""
    assert result.checkpoint is not None
    checkpoint = open_checkpoint(result.checkpoint)
    state = load_trainer_state(checkpoint)
    names = [name for name in ("algorithm", "envs", "buffer", "observation", "priorities") if name in state]
    return checkpoint.policy_sha256, describe({name: state[name] for name in names})


# The environments raise at a forbidden action, so a run that ends has taken none: not in the warm-up, not by epsilon,
# and not in its evaluations.


@pytest.mark.parametrize(
    ("name", "vectorization", "stops"),
    [
        ("dqn", "sync", [1, 43, 60, 97, 132, 190]),
        ("dqn", "split", [60]),
        pytest.param("dqn", "async", [60, 132], marks=pytest.mark.slow),
        ("dqn by priority of masks in observations", "sync", [43, 97]),
        ("dqn with targets ahead", "sync", [141, 150]),
        ("ppo", "sync", [1, 15, 33, 34, 36, 45, 70, 110]),
        ("ppo", "split", [15, 35]),
        pytest.param("ppo", "async", [15, 35], marks=pytest.mark.slow),
        ("ppo of several choices", "sync", [15, 35]),
        ("ppo of several choices shown", "sync", [15, 35]),
        ("ppo with a memory", "sync", [15, 34, 70]),
    ],
)
def test_a_run_stopped_anywhere_and_resumed_equals_the_uninterrupted_run(
    name: str, vectorization: str, stops: list[int]
) -> None:
    config, whole = CONFIGS[name], Events()
    expected = bits(MANAGER.setup(config, [whole]).train())
    for polls in stops:
        points = Events()
        changed = config.model_copy(update={"vectorization": vectorization})
        stopped = MANAGER.setup(changed, [points], stop=StopAfterPolls(polls)).train()
        assert stopped.stop_reason == "signal"
        resumed = MANAGER.resume(stopped.run_dir, [points]).train()
        assert (resumed.stop_reason, resumed.num_timesteps) == ("completed", config.total_timesteps)
        assert bits(resumed) == expected, polls
        assert points.points == whole.points, polls


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_stopped_at_any_poll_equals_the_uninterrupted_run(name: str) -> None:
    config, whole = CONFIGS[name], Events()
    expected = bits(MANAGER.setup(config, [whole]).train())
    for polls in range(1, 400):
        stopped = MANAGER.setup(config, stop=StopAfterPolls(polls)).train()
        if stopped.stop_reason == "completed":
            assert polls > 100
            return
        assert bits(MANAGER.resume(stopped.run_dir).train()) == expected, polls


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_the_best_allowed_action_is_learned(algo: str) -> None:
    """Of two allowed actions, the second one earns 1, and of one that one: 10 in an episode."""
    evaluation = {"every": 10**6, "episodes": 5}
    if algo == "dqn":
        config: TrainConfig = dqn(
            total_timesteps=1_500, buffer_size=2_000, learning_rate=3e-3, gamma=0.1, n_step=1, evaluation=evaluation,
            gradient_steps=16, normalization={},
        )  # fmt: skip
    else:
        config = ppo(total_timesteps=2_048, rollout_steps=64, learning_rate=1e-2, epochs=6, gamma=0.5,
                     evaluation=evaluation, normalization={})  # fmt: skip
    assert MANAGER.setup(config).train().metrics["eval/return_mean"] == 10.0


def test_frames_that_are_stored_once_have_no_masks() -> None:
    with pytest.raises(ConfigError, match="frame_channels: got 1 with an action mask"):
        MANAGER.setup(dqn(frame_channels=1))


@pytest.mark.parametrize("name", ["dqn", "ppo of several choices shown", "ppo with a memory"])
def test_a_film_shows_allowed_actions(name: str) -> None:
    config = CONFIGS[name].model_copy(update={"total_timesteps": 64})
    (episode,) = rl_training.record(MANAGER.setup(config).train().run_dir)
    assert episode.length == 10
    assert episode.film is not None


@pytest.mark.parametrize("name", ["dqn", "dqn by priority of masks in observations", "ppo", "ppo of several choices"])
def test_a_loaded_policy_takes_masks_and_acts_by_them(name: str) -> None:
    config = CONFIGS[name]
    run_dir = MANAGER.setup(config.model_copy(update={"total_timesteps": 64})).train().run_dir
    policy, env = rl_training.load_policy(run_dir), gym.make(config.env_id, **config.env_kwargs)
    shown, info = env.reset(seed=5)
    for step in range(10):
        mask = info.get("action_mask")
        mask = np.concatenate(mask) if isinstance(mask, tuple) else mask
        observation = shown if mask is None else {"observation": shown, "action_mask": mask}
        shown, _, _, _, info = env.step(policy.act(observation, deterministic=step % 2 == 0))
    assert env.unwrapped.t == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["dqn", "ppo of several choices"])
def test_a_served_policy_takes_masks_as_its_signature_says(name: str, tmp_path: Path) -> None:
    run_dir = MANAGER.setup(CONFIGS[name].model_copy(update={"total_timesteps": 64})).train().run_dir
    checkpoint = find_checkpoint(run_dir)
    assert checkpoint is not None
    save_model(checkpoint, tmp_path / "model")
    check_model(tmp_path / "model", load_policy(checkpoint))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    size = {"dqn": 3, "ppo of several choices": 5}[name]
    assert str(model.metadata.signature.inputs) == (
        f"['action_mask': Tensor('int8', (-1, {size})), 'observation': Tensor('float32', (-1, 4))]"
    )
    single = np.eye(3, dtype=np.int8)
    masks = single if size == 3 else np.concatenate([single[:, :2], single], axis=1)
    masks[2, 0] = 1
    got = model.predict({"action_mask": masks, "observation": np.zeros((3, 4), np.float32)})
    if size == 3:  # actions count from 5
        assert got[:2].tolist() == [5, 6]
        assert got[2] in (5, 7)
    else:
        assert got.tolist() == [[0, 0], [1, 1], [0, 2]]


def test_a_served_policy_with_a_memory_takes_the_masks_of_its_history(tmp_path: Path) -> None:
    run_dir = MANAGER.setup(CONFIGS["ppo with a memory"].model_copy(update={"total_timesteps": 64})).train().run_dir
    checkpoint = find_checkpoint(run_dir)
    assert checkpoint is not None
    save_model(checkpoint, tmp_path / "model")
    check_model(tmp_path / "model", load_policy(checkpoint))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    masks = np.ones((2, 3, 3), np.int8)
    masks[0, -1], masks[1, -1] = [0, 1, 0], [0, 0, 1]
    history = {"action_mask": masks, "observation": np.zeros((2, 3, 4), np.float32)}
    assert model.predict(history).tolist() == [6, 7]


def test_a_checkpoint_whose_masks_do_not_fit_its_actions_is_refused() -> None:
    config = CONFIGS["dqn"].model_copy(update={"total_timesteps": 64})
    checkpoint = find_checkpoint(MANAGER.setup(config).train().run_dir)
    assert checkpoint is not None
    policy = load_policy_state(checkpoint)
    changed = {**policy, "action_space": {**policy["action_space"], "n": 4}}
    with pytest.raises(
        CheckpointError, match=r"action_mask: observation action_mask has shape \(3,\); expected \(4,\)"
    ):
        read_spaces(config, changed)


def test_fine_tuning_may_begin_to_mask() -> None:
    done = MANAGER.setup(ppo(action_mask=None, env_id="case_envs:Lenient-v0")).train()
    trainer = MANAGER.setup(ppo(env_id="case_envs:Lenient-v0"))
    carried = carry_over(trainer, open_checkpoint(done.checkpoint or ""))
    assert (carried.fresh, carried.statistics) == ((), "carried over")
    trainer.discard()
