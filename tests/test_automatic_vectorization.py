"""`vectorization: auto` becomes native or sync when a run begins, and a run keeps its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rl_training.api.reproduction.original import read_original
from rl_training.comparison.groups import form_groups
from rl_training.comparison.recorded_run import read_directory
from rl_training.config import serialization
from rl_training.config.parsing import read_yaml
from rl_training.config.reading.recorded_settings import read_recorded_settings
from rl_training.config.serialization import config_hash, dump_config
from rl_training.config.settings import TrainConfig
from rl_training.envs.factory import divide_into_groups, make_vector_env
from rl_training.envs.native.automatic_choice import choose_vectorization
from rl_training.envs.native.masked_cartpole import MaskedCartPole
from rl_training.envs.validation.validate import validate_env
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import (
    config_from_mapping,
    config_of_checkpoint,
    config_to_resume,
    recorded_settings,
)
from rl_training.flows.supervised_training import FlowProgress
from rl_training.run_layout import CONFIG
from rl_training.runs.metadata import read_metadata
from rl_training.runtime import run_utils
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import find_checkpoint
from rl_training.runtime.loop_parts.run_origin import ForkOf
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()
CLIP = {"name": "ClipReward", "kwargs": {"min_reward": -1.0, "max_reward": 1.0}}
SYNC = "vectorization: sync\n"
CARTPOLES: dict[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 8, "total_timesteps": 512}
SHORT: dict[str, Any] = {
    **CARTPOLES,
    "rollout_steps": 16,
    "network": {"hidden": [8]},
    "evaluation": {"every": 256, "episodes": 1, "max_episode_steps": 20, "video": False},
}


class Observer(Callback):
    """A callback of a user, which might reach single environments."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))


def short(**fields: Any) -> TrainConfig:
    return config_from_mapping({**SHORT, **fields})


def stopped_run(**fields: Any) -> TrainResult:
    """Returns a run that was stopped in its second rollout."""
    result = MANAGER.setup(short(**fields), stop=StopAfterPolls(60)).train()
    assert 0 < result.num_timesteps < SHORT["total_timesteps"]
    return result


def weights(result: TrainResult) -> str:
    return find_checkpoint(result.run_dir).policy_sha256


def kinds_on_record(run_dir: Path) -> set[str]:
    """Returns the kinds in `config.yaml` of a run and in its newest checkpoint."""
    texts = [(run_dir / CONFIG).read_text(encoding="utf-8"), find_checkpoint(run_dir).config_text()]
    return {kind for text in texts for kind in re.findall(r"^vectorization: (\w+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "native"),
        ({"env_id": "CartPole-v0"}, "native"),
        ({"num_envs": 1_024}, "native"),
        ({"num_envs": 7}, "sync"),
        ({"algo": "dqn", "learning_starts": 64}, "native"),
        ({"max_episode_steps": 50}, "native"),
        ({"normalization": {"observation": True, "reward": True}}, "native"),
        ({"evaluation": {"wrappers": [CLIP]}}, "native"),
        ({"env_id": "Acrobot-v1"}, "sync"),
        ({"env_id": "phys2d/CartPole-v1"}, "sync"),
        ({"env_id": "gymnasium:CartPole-v1"}, "sync"),
        ({"env_id": "case_envs:Rows-v0"}, "sync"),
        ({"env_id": "Unknown-v0"}, "sync"),
        ({"env_kwargs": {"sutton_barto_reward": True}}, "sync"),
        ({"wrappers": ["TimeAwareObservation"]}, "sync"),
        ({"training_wrappers": [CLIP]}, "sync"),
        ({"reset_options": {"low": -0.1}}, "sync"),
        ({"curriculum": [{"attributes": {"gravity": 5.0}}]}, "sync"),
        ({"callbacks": ["my_module:Mine"]}, "sync"),
        ({"metrics": {"info": ["angle"]}}, "sync"),
        ({"ranks": 2}, "sync"),
        ({"vectorization": "sync"}, "sync"),
        ({"vectorization": "split"}, "split"),
        ({"vectorization": "native", "num_envs": 1}, "native"),
    ],
    ids=str,
)
def test_the_kind_of_a_new_run(fields: dict[str, Any], kind: str) -> None:
    config = config_from_mapping({**CARTPOLES, **fields})
    assert choose_vectorization(config) == config.replace(vectorization=kind)


def test_callbacks_that_are_not_in_the_settings_may_reach_single_environments_too() -> None:
    assert choose_vectorization(config_from_mapping(CARTPOLES), has_callbacks=True).vectorization == "sync"
    native = config_from_mapping({**CARTPOLES, "vectorization": "native"})
    assert choose_vectorization(native, has_callbacks=True) == native


@pytest.mark.parametrize(
    "changed",
    [
        {"entry_point": CartPoleEnv},
        {"entry_point": "my_module:CartPole"},
        {"vector_entry_point": "my_module:CartPoles"},
        {"vector_entry_point": None},
        {"kwargs": {"sutton_barto_reward": True}},
        {"max_episode_steps": None},
    ],
    ids=str,
)
def test_an_id_that_is_registered_otherwise_is_an_environment_of_its_own(
    changed: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "entry_point": "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        "vector_entry_point": "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
        "max_episode_steps": 500,
    }
    for registered, kind in ((given, "native"), ({**given, **changed}, "sync")):
        monkeypatch.setitem(gym.registry, "CartPole-v1", gym.envs.registration.EnvSpec("CartPole-v1", **registered))
        assert choose_vectorization(config_from_mapping(CARTPOLES)).vectorization == kind


def test_settings_leave_the_kind_open_so_that_another_task_gets_its_own() -> None:
    config = config_from_mapping(CARTPOLES)
    assert config.vectorization == "auto"
    assert choose_vectorization(config.replace(env_id="Acrobot-v1")).vectorization == "sync"


def test_environments_that_no_run_has_chosen_for_are_stepped_one_after_the_other_here() -> None:
    assert divide_into_groups("auto", 8, cpus=4) == [range(8)]
    with closing(make_vector_env(config_from_mapping(CARTPOLES))) as envs:
        assert isinstance(envs, MaskedVectorEnv)


def test_a_new_run_is_that_of_settings_that_name_its_kind() -> None:
    chosen, named = MANAGER.setup(short(), [FlowProgress()]), MANAGER.setup(short(vectorization="native"))
    assert chosen.config == named.config
    assert read_metadata(chosen.run.run_dir)["config_hash"] == config_hash(named.config)
    result = chosen.train()
    assert weights(result) == weights(named.train())
    assert kinds_on_record(result.run_dir) == {"native"}


def test_a_run_with_a_callback_of_the_user_is_that_of_single_environments() -> None:
    observed = MANAGER.setup(short(), [Observer()]).train()
    assert kinds_on_record(observed.run_dir) == {"sync"}
    assert weights(observed) == weights(MANAGER.setup(short(vectorization="sync")).train())


def test_a_resumed_native_run_ends_as_the_run_that_never_stopped() -> None:
    whole, stopped = MANAGER.setup(short()).train(), stopped_run()
    trainer = MANAGER.resume(stopped.run_dir, [Observer()])  # whatever it has now, it keeps its kind
    assert (trainer.run.run_uid, trainer.config.vectorization) == (stopped.run_uid, "native")
    assert (weights(trainer.train()), trainer.inexact) == (weights(whole), [])


@pytest.mark.parametrize("line", ["", "vectorization: auto\n"], ids=["no key", "auto"])
def test_a_run_that_was_recorded_without_a_kind_continues_with_single_environments(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MANAGER.setup(short(vectorization="sync")).train()
    for module in (run_utils, serialization):
        monkeypatch.setattr(module, "dump_config", lambda config: dump_config(config).replace(SYNC, line))
    stopped = stopped_run(vectorization="sync")
    monkeypatch.undo()
    monkeypatch.setenv("RL_TRAINING_HOME", str(stopped.run_dir.parent.parent))
    checkpoint = find_checkpoint(stopped.run_dir)
    assert SYNC not in checkpoint.config_text()
    readers = (config_of_checkpoint, recorded_settings, config_to_resume)
    assert {read(checkpoint).vectorization for read in readers} == {"sync"}
    assert read_directory(stopped.run_dir).config.vectorization == "sync"
    assert read_original(stopped.run_dir, ()).config.vectorization == "sync"
    trainer = MANAGER.resume(stopped.run_dir)
    assert (trainer.run.run_uid, trainer.config.vectorization) == (stopped.run_uid, "sync")
    assert (weights(trainer.train()), trainer.inexact) == (weights(whole), [])


@pytest.mark.parametrize("kind", ["sync", "native"])
def test_settings_that_leave_it_open_continue_a_checkpoint_with_its_kind(kind: str) -> None:
    """As a flow run that is tried again, or the next segment of a sweep's trial, which have the original settings."""
    stopped = stopped_run(vectorization=kind)
    checkpoint = find_checkpoint(stopped.run_dir)
    config = short(run_dir=recorded_settings(checkpoint).run_dir)
    trainer = MANAGER.setup(config, checkpoint=checkpoint)
    assert (trainer.run.run_uid, trainer.config.vectorization) == (stopped.run_uid, kind)
    forked = MANAGER.setup(short(learning_rate=1e-4), checkpoint=ForkOf(checkpoint))
    assert forked.run.run_uid != stopped.run_uid
    assert forked.config.vectorization == kind
    assert config_to_resume(checkpoint, {"vectorization": "auto"}).vectorization == kind


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"learning_rate": 1e-4}, "native"),
        ({"num_envs": 4}, "native"),
        ({"num_envs": 4, "vectorization": "auto"}, "sync"),
        ({"env_id": "CartPole-v0"}, "native"),
        ({"env_id": "Acrobot-v1"}, "sync"),
        ({"env_id": "Acrobot-v1", "vectorization": "split"}, "split"),
        ({"training_wrappers": [CLIP]}, "sync"),
    ],
    ids=str,
)
def test_fine_tuning_keeps_the_kind_unless_the_task_has_no_such_environments(
    changes: dict[str, Any], kind: str
) -> None:
    stopped = stopped_run()
    trainer: Any = MANAGER.resume(stopped.run_dir, fine_tune=True, **changes)
    trainer.envs.close()
    assert trainer.config.vectorization == kind
    differences = read_metadata(trainer.run.run_dir)["forked_from"]["differences"]
    named = [line for line in differences if line.startswith("vectorization")]
    assert named == ([] if kind == "native" else [f"vectorization: 'native' -> '{kind}' (may change)"])


@pytest.mark.parametrize(("kind", "ok"), [("auto", False), ("native", False), ("sync", True)])
def test_validation_plays_the_environments_that_a_new_run_steps(
    kind: str, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("none of these")

    monkeypatch.setattr(MaskedCartPole, "step", fail)
    report = validate_env(short(vectorization=kind), episodes=1, max_steps=10)
    assert report.ok == ok
    assert [finding.code for finding in report.fatal] == ([] if ok else ["raised"])


def test_runs_that_took_their_kind_and_runs_that_name_it_form_one_group() -> None:
    fields: list[dict[str, Any]] = [{}, {"vectorization": "native", "seed": 1}, {"vectorization": "sync", "seed": 2}]
    runs = [read_directory(MANAGER.setup(short(**each)).train().run_dir) for each in fields]
    groups, left_out = form_groups(runs)
    assert [[run.config.seed for run in group.runs] for group in groups] == [[0, 1], [2]]
    assert [group.label for group in groups] == ["vectorization=native", "vectorization=sync"]
    assert left_out == []


def test_a_record_that_names_a_kind_is_read_as_it_is() -> None:
    for text in ("a: 1\nvectorization: split\n", "vectorization: [auto]\n"):
        assert read_recorded_settings(text, "text") == read_yaml(text, "text")
