"""The warnings of validation stand on the record of a run from its start."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from case_envs.plain import Plain

from rl_training import resume, train, train_ppo
from rl_training.config.algorithms.ppo import PPOConfig
from tests.tiny_tasks import PLAIN


@pytest.fixture(autouse=True)
def own_home(home: Path) -> Path:
    return home


def settings(**fields: Any) -> PPOConfig:
    return PPOConfig(**{**PLAIN, "total_timesteps": 100, "promotion": {}, **fields})


def recorded(run_dir: Path) -> list[dict[str, str]]:
    warnings = json.loads((run_dir / "metadata.json").read_text())["validation"]["warnings"]
    assert isinstance(warnings, list)
    return warnings


@pytest.mark.parametrize("track", [False, True])
def test_an_environment_that_draws_from_a_global_generator_is_not_deterministic_on_the_record(track):
    summary = train(settings(env_id="case_envs:GlobalNumbers-v0"), track=track, offline=track)
    (warning,) = recorded(summary.run_dir)
    assert warning["code"] == "not-deterministic"
    assert "it draws from the global generator of numpy; use self.np_random" in warning["message"]


def test_the_functions_that_train_without_a_record_in_mlflow_keep_the_warnings_too():
    (warning,) = recorded(train_ppo(settings(env_id="case_envs:GlobalNumbers-v0")).run_dir)
    assert warning["code"] == "not-deterministic"


def test_a_global_generator_that_made_no_difference_yet_is_named_too():
    (warning,) = recorded(train(settings(env_id="case_envs:GlobalChance-v0"), track=False).run_dir)
    assert warning["code"] == "global-generator"
    assert "it uses the global generator of random, which other code shares" in warning["message"]


def test_a_draw_of_another_thread_is_not_taken_for_the_environments(monkeypatch):
    step, thread = Plain.step, iter([random.random])

    def step_beside_a_thread(self, action):
        next(thread, lambda: None)()
        return step(self, action)

    monkeypatch.setattr(Plain, "step", step_beside_a_thread)
    assert recorded(train(settings(), track=False).run_dir) == []


def test_a_run_without_warnings_says_so_and_a_resume_renews_the_record():
    summary = train(settings(), track=False)
    assert recorded(summary.run_dir) == []
    longer = resume(summary.run_dir, total_timesteps=200, track=False)
    assert longer.run_dir != summary.run_dir
    assert recorded(longer.run_dir) == []
