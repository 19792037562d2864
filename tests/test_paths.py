"""The places of files, for any user and after an environment has changed the working directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT

from rl_training import train_ppo
from rl_training.errors import UserError
from rl_training.experiment.loading import config_from_mapping
from rl_training.system import paths

UID = 23456
"""The id of a user that no system knows."""
SMALL = """
algo: ppo
env_id: {env_id}
env_kwargs: {env_kwargs}
total_timesteps: 64
num_envs: 2
rollout_steps: 16
batch_size: 16
network: {{hidden: [8]}}
evaluation: {{every: 32, episodes: 1, final_episodes: 1, video: false}}
promotion: {{enabled: false}}
"""


def command(*words: str, cwd: Path, prefix: tuple[str, ...] = (), **variables: str | None) -> tuple[int, str]:
    """Runs `rl-training`; returns its exit code and what it wrote to stderr. A variable that is None is not set."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    line = [*prefix, sys.executable, "-m", "rl_training", *words]
    done = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stderr


def write_config(folder: Path, env_id: str = "case_envs:Plain-v0", **env_kwargs: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(SMALL.format(env_id=env_id, env_kwargs=json.dumps(env_kwargs)))
    return path


@pytest.fixture
def nobody() -> tuple[str, ...]:
    """The start of a command line that runs as a user without a name: in place of root, or in a user namespace."""
    tool = "setpriv" if os.getuid() == 0 else "unshare"
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    if tool == "setpriv":  # it may read the interpreter and the checkout wherever they are
        return (tool, f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=+dac_read_search",
                "--ambient-caps=+dac_read_search")  # fmt: skip
    return (tool, "--user", f"--map-user={UID}", f"--map-group={UID}")


@pytest.fixture
def folder_for_all() -> Iterator[Path]:
    """A folder that other users reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


NAMELESS = dict.fromkeys(("USER", "LOGNAME", "LNAME", "USERNAME"))


def test_the_number_of_a_user_without_a_name_stands_in_the_record(
    nobody: tuple[str, ...], folder_for_all: Path
) -> None:
    words = ("train", "--config", str(write_config(folder_for_all)), "--offline")
    home = folder_for_all / "home"
    code, said = command(*words, cwd=Path("/"), prefix=nobody, HOME="/", RL_TRAINING_HOME=str(home), **NAMELESS)
    assert code == 0, said
    (tracking,) = home.glob("runs/*/tracking.json")
    assert json.loads(tracking.read_text())["tags"]["mlflow.user"] == str(UID)


@pytest.mark.parametrize(
    ("home", "expected"),
    [
        (None, f"error: user {UID} has no home folder: the system doesn't know this user and HOME is not set; "),
        ("relative", "error: HOME is the relative path 'relative'; set HOME to an absolute path"),
    ],
)
def test_a_user_without_a_home_learns_in_one_line_what_to_set(
    nobody: tuple[str, ...], home: str | None, expected: str
) -> None:
    variables = {"HOME": home, "RL_TRAINING_HOME": None, "XDG_DATA_HOME": None, **NAMELESS}
    code, said = command("train", "--config", "ppo/cartpole", cwd=Path("/"), prefix=nobody, **variables)
    assert code == 2
    assert said.startswith(expected), said
    assert said.count("\n") == 1


def test_a_home_that_cannot_be_found_is_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", "~no_such_user/home")
    with pytest.raises(UserError, match=r"can't be found: .*; set RL_TRAINING_HOME to a folder"):
        paths.home()


@pytest.mark.parametrize(
    "words", [("train", "--config", "ppo/cartpole"), ("flow", "train", "--config", "ppo/cartpole")]
)
def test_a_working_folder_that_was_removed_is_reported_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && exec {sys.executable} -m rl_training "$@"'
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the working folder can't be used (No such file or directory)"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_relative_places_stay_where_they_were_though_the_environment_moves(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "modules").symlink_to(Path(__file__).parent, target_is_directory=True)
    write_config(tmp_path, "case_envs:Moves-v0", where=str(away), at="step")
    variables = {"RL_TRAINING_HOME": "home", "PYTHONPATH": f"modules{os.pathsep}{Path(__file__).parents[1]}"}
    words = ("train", "--config", "config.yaml", "--set", "vectorization=async", "--offline")
    code, said = command(*words, cwd=tmp_path, **variables)
    assert code == 0, said
    (run_dir,) = tmp_path.glob("home/runs/*")
    assert {path.name for path in run_dir.iterdir()} >= {"config.yaml", "metrics.jsonl", "status.json", "checkpoints"}

    source = str(run_dir.relative_to(tmp_path))
    code, said = command("resume", source, "--set", "total_timesteps=128", "--no-track", cwd=tmp_path, **variables)
    assert code == 0, said
    assert len(list(tmp_path.glob("home/runs/*"))) == 2
    assert not list(away.glob("*/*"))


def test_places_are_made_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RL_TRAINING_HOME", "PREFECT_HOME"):
        monkeypatch.setenv(name, "somewhere")
    monkeypatch.setenv("XDG_DATA_HOME", "~/data")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs.db")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["envs", "", "/usr/lib"]))
    paths.make_paths_absolute()
    monkeypatch.chdir("/")
    paths.make_paths_absolute()
    assert os.environ["RL_TRAINING_HOME"] == os.environ["PREFECT_HOME"] == f"{tmp_path}/somewhere"
    assert os.environ["XDG_DATA_HOME"] == "~/data"
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/runs.db"
    assert os.environ["PYTHONPATH"] == os.pathsep.join([f"{tmp_path}/envs", str(tmp_path), "/usr/lib"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    paths.make_paths_absolute()
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5000"


@pytest.mark.parametrize("at", ["make", "reset", "step"])
def test_from_python_the_home_stays_where_it_was(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_TRAINING_HOME", "home")
    away = tmp_path / "away"
    away.mkdir()
    settings = {"algo": "ppo", "env_id": "case_envs:Moves-v0", "env_kwargs": {"where": str(away), "at": at}}
    rest = {"total_timesteps": 32, "rollout_steps": 16, "batch_size": 16, "evaluation": {"episodes": 1}}
    result = train_ppo(config_from_mapping(settings | rest))
    assert result.run_dir.parent == tmp_path / "home" / "runs"
