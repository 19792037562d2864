"""A NaN or infinity ends a run with its name, for every algorithm, and the earlier checkpoints stay usable."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli.app import run
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import EnvironmentFault, NumericError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.networks import flat
from rl_training.runtime.checkpoint import load_policy_state, newest_good, read_best
from rl_training.runtime.checkpoint.plain_state import find_non_finite
from tests.off_policy_runs import dqn, sac, td3, tqc

ALGORITHMS = pytest.mark.parametrize("algo", ["ppo", "dqn", "sac", "td3", "tqc"])
EVERY: dict[str, Any] = {"checkpoint": {"every": 20}, "evaluation": {"every": 50, "episodes": 2, "num_envs": 2}}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))


def settings(algo: str, env: str, env_kwargs: dict[str, Any], **fields: Any) -> TrainConfig:
    if algo == "ppo":
        return PPOConfig(
            env_id=f"case_envs:{env}-v0",
            env_kwargs=env_kwargs,
            num_envs=1,
            total_timesteps=400,
            rollout_steps=32,
            batch_size=32,
            **EVERY,
            **fields,
        )
    make = {"dqn": dqn, "sac": sac, "td3": td3, "tqc": tqc}[algo]
    return make(env, env_kwargs=env_kwargs, total_timesteps=400, learning_starts=32, **EVERY, **fields)


def good_afterwards(run_dir: Path, *, before: int) -> None:
    """The checkpoints of the run are finite, older than the fault, and can be resumed from."""
    checkpoint, skipped = newest_good(run_dir / "checkpoints")
    assert checkpoint is not None
    assert skipped == []
    assert before - 21 <= checkpoint.num_timesteps < before
    best = read_best(run_dir / "checkpoints")
    for kept in (checkpoint, *([best[0]] if best is not None else [])):
        assert find_non_finite(load_policy_state(kept)) is None
    resumed = DefaultExperimentManager().resume(run_dir)
    assert resumed.num_timesteps == checkpoint.num_timesteps
    resumed.discard()


@ALGORITHMS
@pytest.mark.parametrize(
    ("what", "value", "named"),
    [
        ("observation", math.nan, "observation feature 2 is nan; it must be finite"),
        ("observation", math.inf, "observation feature 2 is inf; it must be finite"),
        ("reward", math.nan, "reward is nan; it must be finite"),
        ("reward", -math.inf, "reward is -inf; it must be finite"),
    ],
)
def test_what_the_environment_gives(algo: str, what: str, value: float, named: str) -> None:
    spoilt = {"what": what, "value": str(value), "discrete": algo == "dqn"}
    trainer = DefaultExperimentManager().setup(settings(algo, "SpoiltLate", spoilt))
    with pytest.raises(EnvironmentFault) as caught:
        trainer.train()
    assert str(caught.value) == f"environment case_envs:SpoiltLate-v0 (index 0) at its step 137: {named}"
    assert trainer.state.stop_reason == "failed"
    good_afterwards(trainer.run.run_dir, before=137)


# NumPy warns first.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@ALGORITHMS
def test_what_learning_makes_of_it(algo: str) -> None:
    """With a learning rate that no network survives."""
    env = "AsymAct" if algo in ("sac", "td3", "tqc") else "Plain"
    trainer = DefaultExperimentManager().setup(settings(algo, env, {}, learning_rate=1e30))
    with pytest.raises(NumericError, match=r"(weight|loss|gradient|policy|target|replayed|value|action)\S* .*finite"):
        trainer.train()
    good_afterwards(trainer.run.run_dir, before=trainer.num_timesteps + 1)


@ALGORITHMS
def test_a_weight_that_is_spoilt_is_never_saved_nor_the_best(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between an update and the checkpoint that is due after it: nothing computes with the weight on the way there."""
    env = "AsymAct" if algo in ("sac", "td3", "tqc") else "Plain"
    trainer = DefaultExperimentManager().setup(settings(algo, env, {}))
    evaluate = trainer._evaluation.run
    monkeypatch.setattr(flat, "require_finite_values", lambda name, tensor: tensor)  # loading would refuse it

    def spoil(*arguments: Any) -> Any:
        result = evaluate(*arguments)
        if trainer.num_timesteps >= 150:
            weights = {name: tensor.clone() for name, tensor in trainer.algorithm.policy_state().items()}
            next(iter(weights.values())).view(-1)[0] = math.nan
            trainer.algorithm.load_policy_state(weights)
        return result

    trainer._evaluation.run = spoil
    with pytest.raises(NumericError, match=r"policy tensor weights/\S+\[0.*\] is NaN or infinite at step 150"):
        trainer.train()
    good_afterwards(trainer.run.run_dir, before=150)


def test_the_command_line_says_so_and_the_run_has_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = settings("ppo", "SpoiltLate", {"what": "reward", "value": "inf", "discrete": True})
    path = tmp_path / "spoilt.yaml"
    path.write_text(config.model_dump_json())
    assert run(["train", "--config", str(path), "--offline"]) == 1
    err = capfd.readouterr().err
    assert "error: environment case_envs:SpoiltLate-v0 (index 0) at its step 137: reward is inf" in err
    (run_dir,) = (tmp_path / "runs").iterdir()
    status = json.loads((run_dir / "status.json").read_text())
    assert status["status"] == "FAILED"
    assert "reward is inf" in status["error"]
