"""Modules that a received run names are imported only with the user's permission, and never from its directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from waiting import LIMIT

from rl_training import evaluate_checkpoint, load_config, load_policy, resume, train_ppo
from rl_training.cli.app import run
from rl_training.config.named_modules import list_modules, remove_modules
from rl_training.errors import ModuleRefused
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.runtime.checkpoint import newest_good
from rl_training.security import import_guard
from tests.received_runs import EVIL, SMALL, listing, made_elsewhere, received


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_elsewhere(tmp_path_factory.mktemp("made"))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the module of `EVIL` writes; the test gets a separate home, and no module of an earlier test."""
    path = tmp_path / "mark"
    monkeypatch.setenv("EVIL_MARK", str(path))
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RL_TRAINING_ALLOW_MODULES", raising=False)
    monkeypatch.setattr(import_guard, "_excluded", {})
    for name in ("gift", "gift.evil", "helper", "allowed"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    gymnasium.registry.pop("Evil-v0", None)
    return path


def module_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the package `gift` with `gift.evil` into a folder that is on the path."""
    (folder / "gift").mkdir(parents=True)
    (folder / "gift" / "__init__.py").write_text("")
    (folder / "gift" / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(folder))


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Returns the one line by which a command is refused."""
    assert run([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == ""
    assert len(errors) == 1, captured.err
    assert "Traceback" not in captured.err
    return errors[0]


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"env_id": "gift.evil:Evil-v0"}, "env_id"),
        ({"wrappers": ["gift.evil:Wrapper"]}, "wrappers.0.name"),
        ({"env_id": "gift.evil:Evil-v0", "num_envs": 2, "vectorization": "async"}, "env_id"),
        ({"training_wrappers": ["gift.evil:Wrapper"]}, "training_wrappers.0.name"),
        ({"callbacks": ["gift.evil:Callback"]}, "callbacks.0.name"),
        ({"tracking": {"sinks": ["gift.evil:Sink"]}}, "tracking.sinks.0"),
        ({"evaluation": {"env_id": "gift.evil:Evil-v0"}}, "evaluation.env_id"),
        ({"network": {"hidden": [4], "body": "gift.evil:Body"}}, "network.body.name"),
        ({"evaluation": {"wrappers": ["gift.evil:Wrapper"]}}, "evaluation.wrappers.0.name"),
    ],
)
@pytest.mark.parametrize("command", [["evaluate"], ["resume", "--no-track", "--set", "total_timesteps=128"]])
def test_a_received_module_is_refused_by_name_before_anything_is_imported_or_written(
    made, tmp_path, mark, monkeypatch, capsys, settings, setting, command
):
    module_in(tmp_path / "installed", monkeypatch)
    gift = received(made, tmp_path / "received", settings)
    before = listing(gift)
    line = refused(capsys, command[0], gift, *command[1:])
    assert f"{setting} names the module gift.evil" in line
    assert "--allow-module gift.evil" in line
    assert "RL_TRAINING_ALLOW_MODULES=gift.evil" in line
    assert not mark.exists()
    assert listing(gift) == before
    assert not list((tmp_path / "home").glob("runs/*"))


def test_promote_refuses_it_before_mlflow_is_asked(made, tmp_path, mark, monkeypatch, capsys):
    module_in(tmp_path / "installed", monkeypatch)
    gift = received(made, tmp_path / "received", {"env_id": "gift.evil:Evil-v0"})
    assert "--allow-module gift.evil" in refused(capsys, "promote", gift)
    assert not mark.exists()


def test_a_module_of_the_standard_library_is_refused_too(made, tmp_path, mark, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    gift = received(made, tmp_path / "received", {"env_id": "venv.__main__:X-v0"})
    before = set(tmp_path.iterdir())
    assert "--allow-module venv.__main__" in refused(capsys, "evaluate", gift)
    assert set(tmp_path.iterdir()) - {tmp_path / "home"} == before - {tmp_path / "home"}


def test_the_users_word_is_a_flag_a_variable_or_a_line_in_the_home(made, tmp_path, mark, monkeypatch, capsys):
    module_in(tmp_path / "installed", monkeypatch)
    gift = received(made, tmp_path / "received", {"env_id": "gift.evil:Evil-v0"})
    assert run(["evaluate", str(gift), "--allow-module", "gift.evil"]) == 0
    assert mark.read_text() == "gift.evil"
    refused(capsys, "evaluate", gift)  # a flag is the word for one command
    refused(capsys, "evaluate", gift, "--allow-module", "gift.evil2")
    refused(capsys, "evaluate", gift, "--allow-module", "gift.evil.more")
    assert run(["evaluate", str(gift), "--allow-module", "other", "--allow-module", "gift"]) == 0  # all modules
    with monkeypatch.context() as patch:
        patch.setenv("RL_TRAINING_ALLOW_MODULES", "other, gift.evil")
        assert run(["evaluate", str(gift)]) == 0
        assert run(["resume", str(gift), "--no-track", "--set", "total_timesteps=128"]) == 0
    refused(capsys, "evaluate", gift)  # a variable for one process
    (tmp_path / "home" / "allowed_modules.txt").write_text("# of a colleague\nother\ngift.evil  # seen\n")
    assert run(["evaluate", str(gift)]) == 0


def test_a_received_run_does_not_decide_how_many_environments_judge_it(made, tmp_path, mark, capsys):
    many = received(made, tmp_path / "received", {"evaluation": {"num_envs": 10**7, "final_episodes": 10**7}})
    assert "evaluation.num_envs: got 10000000, expected less than or equal to 1024" in refused(capsys, "evaluate", many)


def test_a_wrong_word_is_named(made, tmp_path, mark, monkeypatch, capsys):
    gift = received(made, tmp_path / "received", {"env_id": "gift.evil:Evil-v0"})
    assert "'gift:Evil-v0'" in refused(capsys, "evaluate", gift, "--allow-module", "gift:Evil-v0")
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "allowed_modules.txt").write_text("one/two\n")
    line = refused(capsys, "evaluate", gift)
    assert "allowed_modules.txt" in line
    assert "'one/two'" in line


def test_in_python_a_received_checkpoint_needs_the_same_word(made, tmp_path, mark, monkeypatch):
    module_in(tmp_path / "installed", monkeypatch)
    gift = received(made, tmp_path / "received", {"env_id": "gift.evil:Evil-v0"})
    with pytest.raises(ModuleRefused, match=r"gift\.evil"):
        evaluate_checkpoint(gift)
    with pytest.raises(ModuleRefused, match=r"gift\.evil"):
        resume(gift, track=False, total_timesteps=128)
    assert load_policy(gift).action_space.n == 2  # a policy alone imports nothing that the settings name
    assert not mark.exists()
    assert evaluate_checkpoint(gift, allow_modules=["gift.evil"]).episodes == 1
    assert resume(gift, track=False, total_timesteps=96, allow_modules=["gift"]).num_timesteps == 96


def test_a_wrapper_that_writes_where_its_arguments_say_needs_the_word_too(made, tmp_path, mark, monkeypatch, capsys):
    folder = tmp_path / "theirs"
    for i, name in enumerate(("RecordVideo", "gymnasium.wrappers.rendering:RecordVideo")):
        wrapper = {"name": name, "kwargs": {"video_folder": str(folder), "disable_logger": True}}
        settings = {"wrappers": [wrapper], "env_kwargs": {"render_mode": "rgb_array"}}
        run_dir = received(made, tmp_path / f"run{i}", settings)
        for command in (["resume", run_dir, "--set", "total_timesteps=128", "--no-track"], ["evaluate", run_dir]):
            error = refused(capsys, *command)
            assert "wrappers.0.name is RecordVideo, which writes files wherever its arguments say" in error
            assert "--allow-module gymnasium.wrappers" in error
        assert not folder.exists()
    checkpoint, _ = newest_good(run_dir / "checkpoints")
    assert config_of_checkpoint(checkpoint, allow_modules=["gymnasium.wrappers"]).wrappers[0].name == name


def test_what_the_user_types_is_their_word(made, tmp_path, mark, monkeypatch):
    module_in(tmp_path / "installed", monkeypatch)
    gift = received(made, tmp_path / "received", {"env_id": "other.evil:Evil-v0"})
    words = ["resume", str(gift), "--no-track", "--fine-tune", "--set", "total_timesteps=64"]
    assert run([*words, "--set", "env_id=gift.evil:Evil-v0"]) == 0
    assert mark.exists()


def test_overriding_a_wrappers_arguments_is_no_word_for_its_module(made, tmp_path, mark, monkeypatch):
    module_in(tmp_path / "installed", monkeypatch)
    gift = received(made, tmp_path / "received", {"wrappers": [{"name": "gift.evil:Wrapper", "kwargs": {}}]})
    with pytest.raises(ModuleRefused, match=r"wrappers\.0\.name names the module gift\.evil"):
        evaluate_checkpoint(gift, config_overrides={"env_id": "CartPole-v1"})
    assert not mark.exists()


def test_a_run_of_ones_own_home_needs_no_word_wherever_its_directory_is(tmp_path, mark, monkeypatch):
    module_in(tmp_path / "installed", monkeypatch)
    own = {**SMALL, "env_id": "gift.evil:Evil-v0"}
    inside = train_ppo(load_config(_written(tmp_path, own)))
    outside = train_ppo(load_config(_written(tmp_path, own), {"run_dir": str(tmp_path / "elsewhere")}))
    assert (tmp_path / "home" / "allowed_modules.txt").read_text() == "gift.evil\n"
    assert evaluate_checkpoint(inside.run_dir).episodes == evaluate_checkpoint(outside.run_dir).episodes == 1
    # One that was made before there was a list: in the home's `runs` it is the home's, but not through a link.
    (tmp_path / "home" / "allowed_modules.txt").unlink()
    assert evaluate_checkpoint(inside.run_dir).episodes == 1
    (inside.run_dir.parent / "linked").symlink_to(outside.run_dir)
    with pytest.raises(ModuleRefused):
        evaluate_checkpoint(inside.run_dir.parent / "linked")


def test_nothing_is_imported_from_a_received_directory_that_is_the_working_folder(made, tmp_path, mark):
    """Neither a module that is allowed, nor what a distribution there registers with Gymnasium."""
    gift = received(made, tmp_path / "received", {"env_id": "gift.evil:Evil-v0"})
    (gift / "gift").mkdir()
    for path in (gift / "gift" / "evil.py", gift / "planted.py"):
        path.write_text(EVIL)
    info = gift / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gymnasium.envs]\nplanted = planted:x\n")
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", "evaluate", ".", "--allow-module", "gift"],
        cwd=gift,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "never imported from there" in done.stderr.splitlines()[-1]
    assert "error: " not in done.stderr.partition("error: ")[2]
    assert not mark.exists()


def test_a_received_directory_that_is_a_package_of_the_working_folder_is_not_imported(
    made, tmp_path, mark, monkeypatch, capsys
):
    gift = received(made, tmp_path / "gift", {"env_id": "gift.evil:Evil-v0"})
    (gift / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    for init in (False, True):
        if init:
            (gift / "__init__.py").write_text("")
        assert "never imported from there" in refused(capsys, "evaluate", "gift", "--allow-module", "gift")
    assert not mark.exists()


def test_what_an_allowed_module_imports_is_not_taken_from_there_either(made, tmp_path, mark, monkeypatch, capsys):
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "allowed.py").write_text("import helper")
    gift = received(made, tmp_path / "received", {"env_id": "allowed:Evil-v0"})
    (gift / "helper.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(gift))
    line = refused(capsys, "evaluate", gift, "--allow-module", "allowed")
    assert "helper is not imported from" in line
    assert not mark.exists()


def test_a_worker_process_takes_nothing_from_there_either(made, tmp_path, mark, monkeypatch, capsys):
    settings: dict[str, Any] = {"env_id": "allowed:Evil-v0", "vectorization": "async"}
    gift = received(made, tmp_path / "received", settings)
    installed = tmp_path / "installed"
    installed.mkdir()
    # In this process it is fine; in a worker it imports what lies in the run's directory.
    (installed / "allowed.py").write_text(
        "import os, gymnasium\n"
        f"if os.getpid() != {os.getpid()}:\n    import helper\n"
        'gymnasium.register("Evil-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")\n'
    )
    (gift / "helper.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(gift))
    with pytest.raises(Exception, match="helper is not imported from"):
        resume(gift, track=False, total_timesteps=128, allow_modules=["allowed"])
    assert not mark.exists()


def test_a_child_process_imports_nothing_from_the_working_folder(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working folder')")
    command = import_guard.make_command("print(sys.argv[1:], sys.path)", "first", "second")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{['first', 'second']} {sys.path}\n", "")


def test_a_wrapper_that_writes_needs_the_word_in_each_list(made, tmp_path, mark, capsys):
    wrapper = {"name": "RecordVideo", "kwargs": {"video_folder": str(tmp_path / "theirs")}}
    lists = {
        "training_wrappers": {"training_wrappers": [wrapper]},
        "evaluation.wrappers": {"evaluation": {"wrappers": [wrapper]}},
    }
    for i, (key, settings) in enumerate(lists.items()):
        error = refused(capsys, "resume", received(made, tmp_path / f"run{i}", settings), "--no-track")
        assert f"{key}.0.name is RecordVideo" in error
        assert f"or override {key} to leave it out" in error
    assert not (tmp_path / "theirs").exists()


def test_every_setting_that_names_a_module_is_found():
    config = load_config(
        "ppo/cartpole",
        {
            "env_id": "a.b:C-v0",
            "wrappers": ["TimeAwareObservation", "d:E"],
            "training_wrappers": ["e:F"],
            "callbacks": ["f:G"],
            "evaluation": {"env_id": "g:H-v0", "wrappers": ["h:I"]},
            "tracking": {"sinks": ["tensorboard", "i:J"]},
            "network": {"body": "j.k:L"},
        },
    )
    assert list_modules(config) == {
        "env_id": "a.b",
        "wrappers.1.name": "d",
        "training_wrappers.0.name": "e",
        "callbacks.0.name": "f",
        "evaluation.env_id": "g",
        "evaluation.wrappers.0.name": "h",
        "tracking.sinks.1": "i",
        "network.body.name": "j.k",
    }
    assert list_modules(remove_modules(config)) == {}
    assert remove_modules(config).seed == config.seed


def _written(folder: Path, settings: dict[str, Any]) -> Path:
    path = folder / "own.json"
    path.write_text(json.dumps(settings))
    return path
