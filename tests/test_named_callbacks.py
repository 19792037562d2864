"""Callbacks that the settings name: made with the trainer, before the caller's, with states of their own."""

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from scripted_envs import SCRIPTED, Counts, Scripted, StopsAt
from waiting import LIMIT

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import ConfigError, ModuleRefused, UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping, config_to_resume
from rl_training.runs.health_warnings import HEALTH
from rl_training.runtime.callbacks import CallbackError
from rl_training.runtime.checkpoint import find_checkpoint, load_trainer_state
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.trainers.ppo_trainer import train_ppo

MANAGER = DefaultExperimentManager()
PLAIN = {
    **SCRIPTED,
    "total_timesteps": 96,
    "evaluation": {"every": 999, "episodes": 1, "final_episodes": 1, "video": False},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Counts, "made", [])
    Scripted.returns = [1.0]
    return tmp_path / "home"


def settings(*callbacks: Any, **fields: Any) -> PPOConfig:
    config = config_from_mapping({**PLAIN, "callbacks": list(callbacks), **fields})
    assert isinstance(config, PPOConfig)
    return config


def states(run_dir: Path) -> Any:
    found = load_trainer_state(find_checkpoint(run_dir))["callbacks"]
    return {key: state for key, state in found.items() if key != HEALTH}


def resume_with(run_dir: Path, named: list[Any], callbacks: Any = ()) -> Trainer:
    """Resumes a run with other callbacks in its settings."""
    checkpoint = find_checkpoint(run_dir)
    return MANAGER.setup(config_to_resume(checkpoint, {"callbacks": named}), callbacks, checkpoint=checkpoint)


def test_a_callback_of_the_settings_sees_the_events_with_its_arguments() -> None:
    result = train_ppo(settings("scripted_envs:Counts", {"name": "scripted_envs:Counts", "kwargs": {"start": 10}}))
    assert [callback.updates for callback in Counts.made] == [3, 13]  # 96 steps in rollouts of 2 x 16
    assert states(result.run_dir) == {
        "scripted_envs:Counts:0": {"updates": 3},
        "scripted_envs:Counts:1": {"updates": 13},
    }


def test_its_state_is_restored_whichever_callbacks_the_caller_adds() -> None:
    config = settings("scripted_envs:Counts")
    stopped = MANAGER.setup(config, [StopsAt(32)]).train()
    MANAGER.resume(stopped.run_dir, [Counts(), StopsAt(64)]).train()
    assert states(stopped.run_dir)["scripted_envs:Counts:0"] == {"updates": 2}
    done = MANAGER.resume(stopped.run_dir).train()
    assert states(done.run_dir) == {"scripted_envs:Counts:0": {"updates": 3}}
    metadata = json.loads((done.run_dir / "metadata.json").read_text())
    assert "inexact" not in metadata


def test_the_callers_states_do_not_depend_on_the_callbacks_of_the_settings() -> None:
    stopped = MANAGER.setup(settings(), [Counts(), StopsAt(32)]).train()
    own = Counts()
    forked = resume_with(stopped.run_dir, ["scripted_envs:Counts"], [own, StopsAt(999)])
    assert own.updates == 1
    forked.train()
    assert own.updates == 3


def test_a_resume_with_other_callbacks_is_a_fork_that_is_recorded_as_inexact() -> None:
    stopped = MANAGER.setup(settings("scripted_envs:Counts"), [StopsAt(32)]).train()
    fork = resume_with(stopped.run_dir, [{"name": "scripted_envs:Counts", "kwargs": {"start": 5}}]).train()
    assert fork.run_uid != stopped.run_uid
    inexact = json.loads((fork.run_dir / "metadata.json").read_text())["inexact"]
    assert inexact == [
        {"num_timesteps": 32, "fresh_episodes": [], "changed": ["arguments of callbacks: scripted_envs:Counts"]}
    ]
    without = resume_with(stopped.run_dir, []).train()
    inexact = json.loads((without.run_dir / "metadata.json").read_text())["inexact"]
    assert inexact[0]["changed"] == ["callbacks: scripted_envs:Counts -> none"]


def test_a_resume_whose_settings_hold_the_secret_that_the_checkpoint_hides_is_exact() -> None:
    named = [{"name": "scripted_envs:Counts", "kwargs": {"api_token": "hunter2-token"}}]
    stopped = MANAGER.setup(settings(*named), [StopsAt(32)]).train()
    resumed = resume_with(stopped.run_dir, named).train()
    assert resumed.run_uid == stopped.run_uid
    assert "inexact" not in json.loads((resumed.run_dir / "metadata.json").read_text())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nowhere_at_all:Thing",
            r"callbacks\.0: nowhere_at_all:Thing: the module can't be imported: .*No module named",
        ),
        (
            "scripted_envs:Count",
            r"callbacks\.0: scripted_envs:Count: scripted_envs has no 'Count'; did you mean Counts\?",
        ),
        ("scripted_envs:not_a_class", r"callbacks\.0: scripted_envs:not_a_class is not a class of callbacks"),
        ("scripted_envs:Scripted", r"callbacks\.0: scripted_envs:Scripted is not a class of callbacks; expected a sub"),
        (
            {"name": "scripted_envs:Counts", "kwargs": {"stat": 1}},
            r"callbacks\.0: scripted_envs:Counts could not be made",
        ),
    ],
)
def test_a_callback_that_can_not_be_made_is_refused_before_there_is_a_run(name: Any, message: str, home: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        train_ppo(settings(name))
    assert "\n" not in str(refused.value)
    assert not list((home / "runs").glob("*"))


def test_a_module_that_fails_at_its_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"fails_at_import:A: the module can't be imported: RuntimeError: no licence"):
        train_ppo(settings("fails_at_import:A"))


def test_a_secret_argument_is_resolved_late_and_in_no_file_and_no_message(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("PLANTED", "hunter2-very-secret")
    named = {"name": "scripted_envs:Tells", "kwargs": {"api_token": "${env:PLANTED}"}}
    with pytest.raises(CallbackError, match=r"Tells\.on_update_end raised ValueError: refused with \*+") as failed:
        train_ppo(settings(named))
    assert Counts.made[0].token == "hunter2-very-secret"
    assert "hunter2" not in str(failed.value.__cause__)
    for path in home.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


@pytest.mark.parametrize("method", ["state_dict", "files_to_sync", "on_train_end"])
def test_a_failure_in_any_method_names_the_callback_and_no_secret(method: str, home: Path) -> None:
    named = {"name": "scripted_envs:TellsIn", "kwargs": {"method": method, "api_token": "hunter2-token"}}
    with pytest.raises(CallbackError, match=rf"TellsIn\.{method} raised ValueError: refused with \*+") as failed:
        train_ppo(settings(named))
    assert "hunter2" not in "".join(traceback.format_exception(failed.value))


def test_a_callback_that_does_not_take_its_state_is_named_without_its_secret() -> None:
    named = {"name": "scripted_envs:TellsIn", "kwargs": {"api_token": "hunter2-token"}}
    stopped = MANAGER.setup(settings(named), [StopsAt(32)]).train()
    named["kwargs"]["method"] = "load_state_dict"
    with pytest.raises(CallbackError, match=r"TellsIn\.load_state_dict raised ValueError: refused with \*+") as failed:
        resume_with(stopped.run_dir, [named])
    assert "hunter2" not in "".join(traceback.format_exception(failed.value))


def test_a_warning_of_a_callback_that_is_made_hides_its_secret() -> None:
    named = {"name": "scripted_envs:TellsIn", "kwargs": {"method": "__init__", "api_token": "hunter2-token"}}
    with pytest.warns(UserWarning, match=r"^made with \*\*\*$"):
        train_ppo(settings(named))


def test_a_received_runs_callbacks_need_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = train_ppo(settings("scripted_envs:Counts", run_dir=str(tmp_path / "gift"))).run_dir
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "another home"))
    with pytest.raises(ModuleRefused, match=r"callbacks\.0\.name names the module scripted_envs"):
        MANAGER.resume(run_dir, total_timesteps=128, allow_modules=["case_envs"])
    resumed = MANAGER.resume(run_dir, total_timesteps=128, allow_modules=["case_envs", "scripted_envs"])
    assert Counts.made[-1].updates == 3
    resumed.discard()


def test_the_command_line_trains_and_resumes_with_them(tmp_path: Path) -> None:
    config = tmp_path / "named.json"
    config.write_text(json.dumps({**PLAIN, "callbacks": ["scripted_envs:Counts"]}))

    def command(*words: object) -> Any:
        arguments = [sys.executable, "-m", "rl_training", *map(str, words), "--no-track", "--json"]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    trained = command("train", "--config", config)
    assert states(Path(trained["run_dir"]))["scripted_envs:Counts:0"] == {"updates": 3}
    resumed = command("resume", trained["run_dir"], "--set", "total_timesteps=160")
    assert states(Path(resumed["run_dir"]))["scripted_envs:Counts:0"] == {"updates": 5}
    assert resumed["inexact"] == []


@pytest.mark.parametrize("named", ["scripted_envs:Counts", {"name": "scripted_envs:Counts"}])
def test_a_name_among_the_callers_callbacks_is_refused_in_one_line(named: Any) -> None:
    with pytest.raises(UserError, match=r"callbacks: got .*scripted_envs:Counts.*; name it in the settings instead"):
        train_ppo(settings(), [named])
