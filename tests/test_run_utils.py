"""The directory of a run: readable, described, never shared, with the right checkpoints."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import policy_state, trainer_state

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.serialization import WrittenConfig
from rl_training.errors import ConfigError, UserError
from rl_training.experiment.loading import config_from_mapping, load_config
from rl_training.runtime.checkpoint import newest_good, write_best
from rl_training.runtime.run_utils import (
    TrainingRun,
    create_training_run,
    open_training_run,
    redact_command,
    resolve_device,
    save_training_checkpoint,
    serialize_train_config,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def config(**settings: Any) -> PPOConfig:
    return PPOConfig(**{"env_id": "CartPole-v1", "total_timesteps": 1_000, "seed": 7, **settings})


# The device


def test_auto_is_a_gpu_for_images_and_wide_networks_where_there_is_one_else_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    for count in (0, 2):
        monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        for hidden in ((), (256, 256), (5_000,), (999, 1_000)):
            small = (cpu, "auto: the network is so small that a GPU would be slower")
            assert resolve_device("auto", hidden=hidden) == small
        wide = (
            (gpu, "auto: a network as wide as this is quicker on a GPU") if count else (cpu, "auto: torch sees no GPU")
        )
        assert resolve_device("auto", hidden=(64, 1_000, 1_000)) == wide
        images = (gpu, "auto: convolutions are quicker on a GPU") if count else (cpu, "auto: torch sees no GPU")
        assert resolve_device("auto", images=True) == images
        assert resolve_device("cpu", images=True) == (cpu, "as set")
    assert resolve_device("cuda:1") == (torch.device("cuda:1"), "as set")


def test_a_gpu_that_is_not_there_is_refused() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(ConfigError, match=rf"device: got cuda:{count}, and torch sees {count} GPUs; use auto or cpu"):
        resolve_device(f"cuda:{count}")


# The settings as JSON


def test_serialized_settings_are_json_with_text_for_paths_words_for_tags_and_no_secret() -> None:
    settings = config_from_mapping(
        {
            "algo": "ppo",
            "env_id": "CartPole-v1",
            "total_timesteps": 1_000,
            "run_dir": "/runs/one",
            "tags": ["baseline", "cpu"],
            "env_kwargs": {"api_token": "s3cret", "level": 2, "key_file": "${env:KEY_FILE}"},
        }
    )
    data = serialize_train_config(settings)
    assert json.loads(json.dumps(data)) == data
    assert data["run_dir"] == "/runs/one"
    assert data["tags"] == {"baseline": "", "cpu": ""}
    assert data["env_kwargs"] == {"api_token": "***", "level": 2, "key_file": "${env:KEY_FILE}"}
    assert data["network"]["hidden"] == [64, 64]
    assert serialize_train_config(config())["run_dir"] is None


# A new run


def test_a_new_run_has_a_readable_directory_of_its_own(home: Path) -> None:
    first, second = create_training_run(config()), create_training_run(config())
    name = r"CartPole-v1-ppo-s7-\d{8}-\d{6}-" + first.run_uid[:8]
    assert re.fullmatch(name, first.run_dir.name)
    assert first.run_dir.parent == home / "runs"
    assert first.run_dir != second.run_dir
    assert re.fullmatch(r"[0-9a-f]{32}", first.run_uid)
    plug_in = create_training_run(config(env_id="trialplug:trialplug/Walk-v0"))
    assert plug_in.run_dir.name.startswith("trialplug-Walk-v0-ppo-s7-")


def test_its_files_say_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rl-training", "train", "--set", "env_kwargs.api_token=s3cret"])
    settings = config(env_kwargs={"api_token": "s3cret"}, threads=2)
    run = create_training_run(settings)
    assert sorted(path.name for path in run.run_dir.iterdir()) == ["config.yaml", "metadata.json"]
    written = load_config(run.run_dir / "config.yaml")
    assert written == settings.model_copy(update={"env_kwargs": {"api_token": "***"}})
    metadata = json.loads((run.run_dir / "metadata.json").read_text())
    assert metadata["run_uid"] == run.run_uid
    assert (metadata["algo"], metadata["env_id"], metadata["seed"]) == ("ppo", "CartPole-v1", 7)
    assert (metadata["device"], metadata["threads"], metadata["pid"]) == ("auto", 2, os.getpid())
    assert metadata["command"] == ["rl-training", "train", "--set", "env_kwargs.api_token=***"]
    assert set(metadata["versions"]) == {"python", "rl_training", "torch", "numpy", "gymnasium"}
    assert metadata["versions"]["torch"] == torch.__version__
    assert "s3cret" not in "".join(path.read_text() for path in run.run_dir.iterdir())


def test_the_commit_of_the_users_repository_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def recorded() -> Any:
        return json.loads((create_training_run(config()).run_dir / "metadata.json").read_text())["git"]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert recorded() is None
    git("init")
    assert recorded() is None  # no commit yet
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    assert recorded() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("two")
    assert recorded() == {"commit": git("rev-parse", "HEAD"), "dirty": True}


@pytest.mark.parametrize(
    ("built_from", "recorded"),
    [
        ("1" * 40, {"commit": "1" * 40, "dirty": False}),
        ("1" * 40 + "-dirty", {"commit": "1" * 40, "dirty": True}),
        ("", None),  # an image that was built without one
        ("main", None),
    ],
)
def test_in_an_image_the_commit_is_the_images(
    monkeypatch: pytest.MonkeyPatch, built_from: str, recorded: dict[str, Any] | None
) -> None:
    monkeypatch.setenv("PATH", "")  # without git
    monkeypatch.setenv("RL_TRAINING_GIT_COMMIT", built_from)
    run = create_training_run(config())
    assert json.loads((run.run_dir / "metadata.json").read_text())["git"] == recorded


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    run = create_training_run(config())
    assert json.loads((run.run_dir / "metadata.json").read_text())["git"] is None


@pytest.mark.parametrize("leaving", ["config.yaml", "metadata.json", "checkpoints"])
def test_a_directory_that_holds_a_run_is_refused_with_the_way_to_resume(tmp_path: Path, leaving: str) -> None:
    run_dir = tmp_path / "mine"
    run_dir.mkdir()
    (run_dir / "notes.txt").write_text("a directory may exist")
    create_training_run(config(run_dir=run_dir))
    for path in run_dir.iterdir():
        if path.name != leaving:
            path.unlink()
    if leaving == "checkpoints":
        (run_dir / "checkpoints").mkdir()
    with pytest.raises(UserError) as caught:
        create_training_run(config(run_dir=run_dir))
    assert str(caught.value) == (
        f"{run_dir} already holds a run; resume it with `rl-training resume {run_dir}`, or choose another run_dir"
    )


def test_of_several_that_want_one_directory_one_gets_it(tmp_path: Path) -> None:
    def attempt(_: int) -> str | None:
        try:
            return create_training_run(config(run_dir=tmp_path / "one")).run_uid
        except UserError:
            return None

    with ThreadPoolExecutor(8) as pool:
        got = [uid for uid in pool.map(attempt, range(8)) if uid]
    assert [open_training_run(tmp_path / "one").run_uid] == got


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=rf"run_dir {tmp_path}/file/run can't be written: Not a directory"):
        create_training_run(config(run_dir=tmp_path / "file" / "run"))
    with pytest.raises(UserError, match=rf"^run_dir {tmp_path}/file is a file; expected a directory"):
        create_training_run(config(run_dir=tmp_path / "file"))


def test_a_place_that_becomes_full_is_left_as_it_was(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # less than `config.yaml` has
    try:
        with pytest.raises(UserError, match=rf"^run_dir {tmp_path}/run can't be written: File too large"):
            create_training_run(config(run_dir=tmp_path / "run"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_opened_by_its_directory(tmp_path: Path) -> None:
    run = create_training_run(config(run_dir=tmp_path / "one"))
    assert open_training_run(str(tmp_path / "one")) == run
    assert run.checkpoints == tmp_path / "one" / "checkpoints"


@pytest.mark.parametrize("metadata", [None, "", "[]", "{}", '{"run_uid": 3}'])
def test_what_holds_no_run_is_refused(tmp_path: Path, metadata: str | None) -> None:
    if metadata is not None:
        (tmp_path / "metadata.json").write_text(metadata)
    with pytest.raises(UserError, match=rf"^{tmp_path} holds no run: metadata.json can't be read"):
        open_training_run(tmp_path)


def test_secrets_in_a_command_line_are_hidden() -> None:
    command = [
        "rl-training",
        "train",
        "--set=env_kwargs.password=hunter2",
        "--set",
        "env_kwargs.api_key=abc",
        "--token",
        "xyz",
        "--token=xyz",
        "--config",
        "a.yaml",
        "http://me:pw@host:5000/",
        "learning_rate=1e-3",
        "env_kwargs.password=base64==",
        "env_kwargs={level: 2, 'api_token': 's3 cret', password: hunter2}",
    ]
    assert redact_command(command) == [
        "rl-training",
        "train",
        "--set=env_kwargs.password=***",
        "--set",
        "env_kwargs.api_key=***",
        "--token",
        "***",
        "--token=***",
        "--config",
        "a.yaml",
        "http://me:***@host:5000/",
        "learning_rate=1e-3",
        "env_kwargs.password=***",
        "env_kwargs={level: 2, 'api_token': ***, password: ***}",
    ]


# Its checkpoints


def save(run: TrainingRun, settings: PPOConfig, step: int) -> None:
    save_training_checkpoint(
        run,
        WrittenConfig(settings),
        num_timesteps=step,
        policy=policy_state(step),
        trainer=trainer_state(step),
    )


def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    settings = config(run_dir=tmp_path / "run", checkpoint={"keep_last": 2})
    run = create_training_run(settings)
    for step in (100, 200, 300, 400, 500):
        save(run, settings, step)
        if step == 200:
            found = newest_good(run.checkpoints)[0]
            assert found is not None
            write_best(run.checkpoints, found, 99.0)
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    assert kept == ["best.json", "step_000000000200", "step_000000000400", "step_000000000500"]
    newest = newest_good(run.checkpoints)[0]
    assert newest is not None
    assert (newest.run_uid, newest.algorithm, newest.num_timesteps) == (run.run_uid, "ppo", 500)
    assert config_from_mapping(serialize_train_config(settings)) == settings


def test_what_was_just_saved_is_kept_even_where_later_steps_lie_beside_it(tmp_path: Path) -> None:
    settings = config(run_dir=tmp_path / "run", checkpoint={"keep_last": 1})
    run = create_training_run(settings)
    save(run, settings, 500)
    save(run, settings, 100)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_000000000100", "step_000000000500"]
