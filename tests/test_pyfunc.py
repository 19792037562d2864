"""A policy as an MLflow model: its predictions, its signature, and when it is refused."""

import gymnasium as gym
import mlflow.pyfunc
import numpy as np
import pytest
from mlflow_store import BAD, GOOD, NETWORK, make_run, write_policy
from off_policy_runs import sac

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint import find_checkpoint
from rl_training.runtime.trainers.ppo_trainer import train_ppo
from rl_training.runtime.trainers.sac_trainer import train_sac
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.pyfunc import check_model, make_signature, save_model


@pytest.fixture
def cart_pole(tmp_path):
    """A model with a good policy, and that policy's checkpoint."""
    run_dir, _ = make_run(network=NETWORK)
    checkpoint = write_policy(run_dir, 100, GOOD)
    save_model(checkpoint, tmp_path / "model")
    return tmp_path / "model", checkpoint


def test_continuous_actions_are_in_the_environments_own_units(tmp_path):
    config = sac("AsymAct", total_timesteps=260, run_dir=tmp_path / "run")
    policy = load_policy(train_sac(config).checkpoint)
    save_model(find_checkpoint(tmp_path / "run"), tmp_path / "model")
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    space = policy.action_space
    assert (space.low[0], space.high[0]) == (0.0, 5.0)
    observations = np.stack([policy.observation_space.sample() for _ in range(50)])
    actions = model.predict(observations)
    assert actions.tolist() == np.asarray(policy.act(list(observations))).tolist()
    assert (actions.dtype, actions.shape) == (np.float32, (50, 2))
    assert (space.low <= actions).all()
    assert (actions <= space.high).all()
    assert actions[:, 0].mean() > 1.0  # about the middle of 0 to 5, and not of -1 to 1
    check_model(tmp_path / "model", policy)


def test_a_model_that_acts_otherwise_is_refused(cart_pole):
    path, checkpoint = cart_pole
    check_model(path, load_policy(checkpoint))
    other = load_policy(write_policy(checkpoint.path.parent.parent, 200, BAD))
    with pytest.raises(CheckpointError, match=r"does not act like its policy: got \[[01]\], expected \[[01]\]"):
        check_model(path, other)


def test_a_model_that_mlflow_cannot_run_is_refused(cart_pole):
    path, checkpoint = cart_pole
    policy = load_policy(checkpoint)
    (path / "data" / "checkpoint" / "policy.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"can't be run by MLflow: CheckpointError: .*policy\.pt is damaged"):
        check_model(path, policy)
    (path / "MLmodel").unlink()
    with pytest.raises(CheckpointError, match="can't be run by MLflow: MlflowException: "):
        check_model(path, policy)


@pytest.mark.parametrize(
    ("env", "kwargs", "inputs"),
    [
        ("Float64Obs", {}, "[Tensor('float64', (-1, 4))]"),
        ("SmallImage", {}, "[Tensor('uint8', (-1, 12, 16, 3))]"),
        ("DiscreteObs", {"choices": 11}, "[Tensor('int64', (-1,))]"),
        ("DictObs", {}, None),
    ],
)
def test_every_kind_of_observation_is_taken(env, kwargs, inputs, tmp_path):
    config = PPOConfig(
        env_id=f"case_envs:{env}-v0",
        env_kwargs=kwargs,
        total_timesteps=16,
        rollout_steps=16,
        batch_size=16,
        run_dir=tmp_path / "run",
        evaluation={"every": 100},
    )
    policy = load_policy(train_ppo(config).checkpoint)
    save_model(find_checkpoint(tmp_path / "run"), tmp_path / "model")
    check_model(tmp_path / "model", policy)
    signature = mlflow.pyfunc.load_model(str(tmp_path / "model")).metadata.signature
    assert inputs is None or str(signature.inputs) == inputs


def test_signatures_of_spaces():
    box, discrete = gym.spaces.Box(-1, 1, (3, 2)), gym.spaces.Discrete(4)
    signature = make_signature(gym.spaces.Dict({"image": gym.spaces.Box(0, 255, (8, 8), np.uint8), "vector": box}), box)
    assert str(signature.inputs) == "['image': Tensor('uint8', (-1, 8, 8)), 'vector': Tensor('float32', (-1, 3, 2))]"
    assert str(signature.outputs) == "[Tensor('float32', (-1, 3, 2))]"
    assert str(make_signature(discrete, gym.spaces.MultiBinary(5)).inputs) == "[Tensor('int64', (-1,))]"
    assert make_signature(gym.spaces.Tuple((box, discrete)), discrete) is None
