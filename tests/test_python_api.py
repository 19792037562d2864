"""The functions of `rl_training` that do and record what the commands do."""

import dataclasses
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow_store import GOOD, run_with_policy

import rl_training
from rl_training import Callback, RunSummary, TrainerState, TrainResult, run_layout
from rl_training.cli.app import run as run_command
from rl_training.errors import ConfigError, UserError
from rl_training.runtime.checkpoint import open_checkpoint

SMALL: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 128,
    "num_envs": 2,
    "rollout_steps": 32,
    "batch_size": 64,
    "epochs": 1,
    "evaluation": {"every": 64, "episodes": 2, "final_episodes": 3, "video": False},
}
PPO = {name: value for name, value in SMALL.items() if name != "algo"}
RULES = {"promotion": {"model": "offered", "floor": 100.0, "episodes": 20}}


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Counts(Callback):
    """Counts the updates, and remembers the number across a resume."""

    def __init__(self) -> None:
        self.updates = 0

    def on_update_end(self, state: TrainerState) -> None:
        self.updates += 1
        if self.updates == 1:
            state.request_stop()

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]


@pytest.mark.parametrize("form", ["mapping", "settings", "file"])
def test_train_takes_settings_in_each_form_and_records_what_the_command_records(
    form: str, empty_home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.json.yaml"
    file.write_text(json.dumps(SMALL))
    config = {"mapping": SMALL, "settings": rl_training.PPOConfig(**PPO), "file": file}[form]
    result = rl_training.train(config, offline=True)
    assert run_command(["train", "--config", str(file), "--offline", "--json"]) == 0
    same = json.loads(capfd.readouterr().out)
    assert (result.policy_sha256, result.num_timesteps) == (same["policy_sha256"], 128)
    assert result.evaluation is not None
    assert result.evaluation.return_mean == same["evaluation"]["return_mean"]
    assert list_files(result.run_dir) == list_files(Path(same["run_dir"]))


def list_files(run_dir: Path) -> set[str]:
    return {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}


def test_the_result_has_all_of_a_training_and_prints_as_the_commands_summary(empty_home: Path) -> None:
    result = rl_training.train(SMALL, track=False)
    assert isinstance(result, RunSummary)
    assert {field.name for field in dataclasses.fields(TrainResult)} < {f.name for f in dataclasses.fields(result)}
    assert result.metrics["eval/episodes"] == 2.0
    assert result.best_checkpoint is not None
    assert open_checkpoint(result.best_checkpoint).num_timesteps in (64, 128)
    assert repr(result).splitlines() == result.lines()
    assert str(result).startswith("done at 128 steps, ")


def test_settings_from_python_that_do_not_fit_are_refused_as_in_a_file(empty_home: Path) -> None:
    with pytest.raises(ConfigError, match=r"config: totl_timesteps: .*total_timesteps"):
        rl_training.train({**SMALL, "totl_timesteps": 5}, track=False)
    assert not (empty_home / "runs").exists()


def test_something_else_than_settings_is_refused_with_what_is_expected(empty_home: Path) -> None:
    with pytest.raises(ConfigError) as error:
        rl_training.train(None, track=False)  # type: ignore[arg-type]
    assert str(error.value) == (
        "config: got a NoneType, expected settings, a mapping of them, a file or a shipped name"
    )


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Counts], r"got the class Counts, expected an instance: \[Counts\(\)\]"),
        ([print], "got <built-in function print>, expected instances of Callback"),
        (Counts(), r"got a Counts, expected a list: \[Counts\(\.\.\.\)\]"),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused_before_anything_is_recorded(
    callbacks: Any, message: str, empty_home: Path
) -> None:
    with pytest.raises(UserError, match=f"callbacks: {message}"):
        rl_training.train(SMALL, callbacks, offline=True)
    assert not list(empty_home.glob("runs/*/tracking.json"))


def test_what_validation_doubts_is_shown_without_any_logging_set_up(empty_home: Path) -> None:
    asked = {**SMALL, "metrics": {"info": ["collisions"]}}
    program = f"import rl_training; rl_training.train({asked!r}, track=False)"
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "warning: no-info: metrics.info needs info['collisions']" in ended.stderr
    assert "can be trained on" not in ended.stderr


def test_a_result_is_taken_wherever_the_directory_of_its_run_is(empty_home: Path) -> None:
    result = rl_training.train(SMALL, track=False)
    assert rl_training.evaluate(result, episodes=3) == rl_training.evaluate(result.run_dir, episodes=3)
    assert rl_training.load_policy(result).action_space == rl_training.load_policy(result.run_dir).action_space
    longer = rl_training.resume(result, total_timesteps=result.num_timesteps + 64, track=False)
    assert longer.num_timesteps == result.num_timesteps + 64
    with pytest.raises(UserError, match=r"does not have run .*; send it with .* sync RUN_DIR"):
        rl_training.promote(result)


@pytest.mark.parametrize("source", [None, 3, ["runs:/1"]])
def test_what_is_no_source_is_refused_with_what_to_pass(source: Any) -> None:
    for function in (rl_training.evaluate, rl_training.load_policy, rl_training.resume, rl_training.promote):
        with pytest.raises(UserError, match=r"expected a directory, .* or the result of a training"):
            function(source)


def test_training_in_another_thread_needs_no_signal_handlers(empty_home: Path) -> None:
    results: list[RunSummary] = []
    thread = threading.Thread(target=lambda: results.append(rl_training.train(SMALL, track=False)))
    thread.start()
    thread.join()
    assert [result.stop_reason for result in results] == ["completed"]


def test_a_run_of_train_ppo_is_resumed_evaluated_and_from_then_on_recorded(empty_home: Path) -> None:
    counts = Counts()
    begun = rl_training.train_ppo(rl_training.PPOConfig(**PPO), [counts])
    assert (begun.stop_reason, begun.num_timesteps) == ("callback", 64)
    assert not (begun.run_dir / run_layout.METRICS).exists()
    again = Counts()
    result = rl_training.resume(begun.run_dir, [again], offline=True)
    assert (result.run_uid, result.num_timesteps, result.stop_reason) == (begun.run_uid, 128, "completed")
    assert again.updates == 2
    assert result.evaluation is not None
    assert (begun.run_dir / run_layout.TRACKING).exists()
    whole = rl_training.train(SMALL, track=False)
    assert result.policy_sha256 == whole.policy_sha256


@pytest.mark.parametrize("progress", [False, True])
def test_showing_the_progress_takes_no_state_from_callbacks(progress: bool, empty_home: Path) -> None:
    begun = rl_training.train(SMALL, [Counts()], track=False, progress=progress)
    again = Counts()
    rl_training.resume(begun.run_dir, [again], track=False, progress=not progress)
    assert again.updates == 2


def test_resume_takes_a_checkpoint_and_changed_settings(empty_home: Path) -> None:
    done = rl_training.train(SMALL, track=False)
    fork = rl_training.resume(open_checkpoint(done.checkpoint), track=False, total_timesteps=192)
    assert (fork.num_timesteps, fork.run_uid == done.run_uid) == (192, False)
    tuned = rl_training.resume(done.checkpoint, track=False, fine_tune=True, learning_rate=0.002)
    assert (tuned.num_timesteps, tuned.run_uid == done.run_uid) == (128, False)


def test_progress_is_shown_where_it_is_asked_for(empty_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rl_training.train(SMALL, track=False)
    assert "evaluation mean" not in capsys.readouterr().err  # no terminal
    rl_training.train(SMALL, track=False, progress=True)
    assert "step 128: evaluation mean" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["RUN_DIR", "RUN_DIR/checkpoints/step_000000000100", "RUN_ID", "runs:/RUN_ID"])
def test_each_source_of_the_commands_is_evaluated_and_its_policy_loaded(source: str, client: Any) -> None:
    checkpoint, run_id = run_with_policy(GOOD)
    named = source.replace("RUN_DIR", str(checkpoint.path.parent.parent)).replace("RUN_ID", run_id)
    result = rl_training.evaluate(named, episodes=2, seed=5)
    assert result == rl_training.evaluate_checkpoint(checkpoint, episodes=2, seed=5)
    assert result.returns == (500.0, 500.0)
    assert rl_training.load_policy(named).act([[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]]) == [1, 0]


def test_a_candidate_is_promoted_and_the_champion_evaluated_by_its_alias(client: Any) -> None:
    checkpoint, run_id = run_with_policy(GOOD)
    result = rl_training.promote(run_id, RULES)
    assert (result.verdict.kind, result.model, result.alias) == ("PROMOTE", "offered", "champion")
    champion = "models:/offered@champion"
    assert rl_training.evaluate(champion, episodes=2).returns == (500.0, 500.0)
    assert rl_training.load_policy(champion).act([[0.0, 0.0, 0.1, 0.0]]) == [1]
    assert rl_training.evaluate(checkpoint, overrides={"max_episode_steps": 3}, episodes=1).lengths == (3,)


UNUSED = {
    "experiment": "mine",
    "tags": {"a": "b"},
    "promotion": {"floor": 5.0},
    "evaluation": {**SMALL["evaluation"], "video": False},
}


@pytest.mark.parametrize("by", ["train_ppo", "manager"])
def test_settings_that_a_bare_training_leaves_unused_are_named_once(
    by: str, empty_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = rl_training.PPOConfig(**{**PPO, **UNUSED})
    with caplog.at_level(logging.WARNING):
        if by == "train_ppo":
            rl_training.train_ppo(config)
        else:
            rl_training.DefaultExperimentManager().setup(config).train()
    (warning,) = [line for line in caplog.messages if "not used here" in line]
    assert warning.startswith(
        "experiment, tags, promotion.floor, evaluation.final_episodes, evaluation.video: not used here, "
    )


def test_a_bare_training_without_such_settings_and_a_recorded_one_warn_of_nothing(
    empty_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"every": 64, "episodes": 2}
    rl_training.train_ppo(rl_training.PPOConfig(**{**PPO, "evaluation": own, "run_dir": empty_home / "run"}))
    rl_training.train({**SMALL, **UNUSED}, track=False)
    assert not [line for line in caplog.messages if "not used here" in line]
