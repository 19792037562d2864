"""Evaluation in an environment of its own: id, arguments, wrappers and options; and the numbers of its episodes."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from case_envs.plain import Plain

from rl_training.api.train_and_resume import train
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.workflows import evaluate_checkpoint

MANAGER = DefaultExperimentManager()


class Pays(Plain):
    """Three steps with the reward of its argument, or of the option `pay`; the last info tells the rest."""

    length = 3

    def __init__(self, render_mode: str | None = None, pay: float = 1.0, told: bool = True) -> None:
        super().__init__(render_mode)
        self.pay, self.told = pay, told

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.paid = (options or {}).get("pay", self.pay)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        if self.told and self.t == self.length:
            info = {"is_success": bool(self.np_random.random() < 0.5), "height": 2.5, "name": "x"}
        return (*rest, info)

    def reward(self, action: Any) -> Any:
        return self.paid


class Doubles(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return 2 * reward


class Slow(Pays):
    """Never ends."""

    length = 10**9


gym.register("Pays-v0", f"{__name__}:Pays")
gym.register("Slow-v0", f"{__name__}:Slow")
SETTINGS: dict[str, Any] = {
    "algo": "ppo",
    "env_id": f"{__name__}:Pays-v0",
    "total_timesteps": 32,
    "num_envs": 2,
    "rollout_steps": 16,
    "batch_size": 32,
    "epochs": 1,
    "network": {"hidden": [8]},
}
JUDGED = {"every": 32, "episodes": 3, "final_episodes": 4, "video": False}
DOUBLED = [f"{__name__}:Doubles"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def result(fields: dict[str, Any], evaluation: dict[str, Any]) -> Any:
    config = config_from_mapping({**SETTINGS, **fields, "evaluation": {**JUDGED, **evaluation}})
    return train(config, track=False)


@pytest.mark.parametrize(
    ("fields", "evaluation", "expected"),
    [
        ({}, {}, 3.0),
        ({"env_kwargs": {"pay": 2.0}}, {}, 6.0),
        ({"env_kwargs": {"pay": 2.0}}, {"env_kwargs": {"pay": 5.0}}, 15.0),
        ({"env_kwargs": {"pay": 2.0}}, {"env_kwargs": {}}, 3.0),
        ({"training_wrappers": DOUBLED}, {}, 3.0),
        ({"wrappers": DOUBLED}, {}, 6.0),
        ({"wrappers": DOUBLED}, {"wrappers": []}, 3.0),
        ({}, {"wrappers": DOUBLED}, 6.0),
        ({"reset_options": {"pay": 7.0}}, {}, 21.0),
        ({"reset_options": {"pay": 7.0}}, {"reset_options": {"pay": 4.0}}, 12.0),
        ({"reset_options": {"pay": 7.0}}, {"reset_options": {}}, 3.0),
    ],
)
def test_every_evaluation_plays_in_the_environment_of_evaluation(
    fields: dict[str, Any], evaluation: dict[str, Any], expected: float
) -> None:
    summary = result(fields, evaluation)
    assert summary.evaluation.returns == (expected,) * 4  # held out
    assert summary.metrics["eval/return_mean"] == expected  # periodic
    assert evaluate_checkpoint(summary.checkpoint, episodes=2).returns == (expected,) * 2
    trainer = MANAGER.resume(summary.run_dir)
    assert evaluate_policy(trainer.policy(), trainer.config, [1]).returns == (expected,)
    trainer._opened.close()


def test_the_numbers_of_episodes_are_in_metrics_the_file_and_the_result() -> None:
    summary = result({"wrappers": DOUBLED, "metrics": {"info": ["height", "name", "absent"]}}, {"final_episodes": 20})
    evaluation: EvaluationResult = summary.evaluation
    successes = evaluation.numbers["is_success"]
    assert set(successes) == {0.0, 1.0}
    assert evaluation.success_rate == sum(successes) / 20  # type: ignore[arg-type]
    assert evaluation.numbers["raw_return"] == (3.0,) * 20
    assert evaluation.returns == (6.0,) * 20
    assert evaluation.numbers["info/height"] == (2.5,) * 20
    assert set(evaluation.numbers) == {"is_success", "raw_return", "info/height"}
    written = json.loads((summary.run_dir / "artifacts" / "evaluation.json").read_text())
    assert (written["raw_return_mean"], written["info/height"], written["success_rate"]) == (
        3.0,
        2.5,
        evaluation.success_rate,
    )
    assert EvaluationResult.from_dict(written) == evaluation
    said = summary.to_dict()["evaluation"]
    assert (said["raw_return_mean"], said["info/height"], said["success_rate"]) == (3.0, 2.5, evaluation.success_rate)
    assert "numbers" not in said
    assert summary.metrics["eval/raw_return_mean"] == 3.0
    assert summary.metrics["eval/info/height"] == 2.5
    assert 0 <= summary.metrics["eval/success_rate"] <= 1


def test_an_environment_that_tells_nothing_adds_no_metric() -> None:
    summary = result({"env_kwargs": {"told": False}}, {})
    assert summary.evaluation.numbers == {}
    named = {name for name in summary.metrics if name.startswith("eval/")}
    assert named == {
        f"eval/{name}" for name in ("return_mean", "return_std", "ci_low", "ci_high", "length_mean", "episodes")
    }


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_numbers_are_in_the_order_of_the_seeds_whatever_plays_them(num_envs: int) -> None:
    summary = result({}, {})
    config = config_from_mapping({**SETTINGS, "evaluation": JUDGED})
    trainer = MANAGER.resume(summary.run_dir)
    seeds = list(range(20, 31))
    played = evaluate_policy(trainer.policy(), config, seeds, num_envs=num_envs)
    trainer._opened.close()
    expected = tuple(float(gym.utils.seeding.np_random(seed)[0].random() < 0.5) for seed in seeds)
    assert played.numbers["is_success"] == expected


def test_cut_episodes_are_counted_apart_in_metrics_and_files() -> None:
    summary = result({}, {"env_id": f"{__name__}:Slow-v0", "max_episode_steps": 5})
    assert summary.metrics["eval/cut_episodes"] == 3.0
    assert (summary.evaluation.cut, summary.evaluation.returns) == (4, (5.0,) * 4)
    written = json.loads((summary.run_dir / "artifacts" / "evaluation.json").read_text())
    assert (written["cut"], written["cut_episodes"]) == (4, 4.0)
    assert any("of which 4 cut at evaluation.max_episode_steps" in line for line in summary.lines())
