"""A signal at each moment of a command: an existing run can be resumed, and before that nothing is left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT, wait_for

from rl_training.cli.app import run
from rl_training.runs.stopping import EXIT_STOPPED, EXIT_TERMINATED
from rl_training.runtime.checkpoint import find_checkpoint, open_checkpoint
from rl_training.runtime.checkpoint.downloads import Download, write_download
from rl_training.system.signal_handlers import SIGNALS

IMPORTS = "rl_training.experiment.loading.load_config"
DOWNLOAD = "rl_training.api.train_and_resume.download_checkpoint"
PLAY = "rl_training.api.train_and_resume.check_environment"
MAKE_METADATA = "rl_training.runtime.run_utils._make_metadata"
MAKE_ENVS = "rl_training.runtime.trainers.ppo_trainer.TrainingEnvs"
RESTORE = "rl_training.runtime.trainer.Trainer.restore"
ANNOUNCE = "rl_training.api.training.log_start"
TRAIN = "rl_training.runtime.trainer.Trainer.train"
JUDGE = "rl_training.api.training.evaluate_final_policy"
SUMMARIZE = "rl_training.api.training.summarize"
WRITE_RESULT = "rl_training.cli.training_end.write_result"


def strike(monkeypatch, where: str, number: int = signal.SIGTERM, times: int = 1) -> None:
    """Has the process signal itself when it comes to a function, and again and again if asked to."""
    import importlib

    module, _, name = where.rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        module, _, kind = module.rpartition(".")
        owner = getattr(importlib.import_module(module), kind)
    function = getattr(owner, name)

    def struck(*arguments, **options):
        for _ in range(times):
            os.kill(os.getpid(), number)
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, struck)


def run_directories(small_config: Path) -> list[Path]:
    return sorted((small_config.parent / "home" / "runs").glob("*"))


def train(small_config: Path, *words: str) -> int:
    return run(["train", "--config", str(small_config), "--no-track", "--json", *words])


@pytest.mark.parametrize("where", [IMPORTS, PLAY, MAKE_METADATA, MAKE_ENVS])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, EXIT_TERMINATED), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_before_there_is_a_run_nothing_is_left(where, number, code, small_config, monkeypatch, capfd):
    before = [signal.getsignal(each) for each in SIGNALS]
    strike(monkeypatch, where, number)
    assert train(small_config) == code
    assert run_directories(small_config) == []
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("where", [ANNOUNCE, TRAIN, JUDGE, SUMMARIZE])
def test_a_run_that_exists_can_be_resumed(where, small_config, monkeypatch, capfd):
    strike(monkeypatch, where, times=3)
    assert train(small_config) == EXIT_STOPPED
    stopped = json.loads(capfd.readouterr().out)
    assert stopped["stop_reason"] == "signal"
    assert stopped["num_timesteps"] == (0 if where in (ANNOUNCE, TRAIN) else 256)
    (run_dir,) = run_directories(small_config)
    monkeypatch.undo()
    monkeypatch.setenv("RL_TRAINING_HOME", str(small_config.parent / "home"))
    assert run(["resume", str(run_dir), "--no-track", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["num_timesteps"] == 256


def test_a_signal_once_the_result_is_known_changes_nothing(small_config, monkeypatch, capfd):
    strike(monkeypatch, WRITE_RESULT)
    assert train(small_config) == 0
    assert json.loads(capfd.readouterr().out)["stop_reason"] == "completed"


def contents(run_dir: Path) -> dict[Path, bytes]:
    """Returns all files except the name of the last process that held the run."""
    files = (path for path in run_dir.rglob("*") if path.is_file() and path.suffix != ".holder")
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="same run"),
        pytest.param(("--set", "total_timesteps=384"), marks=pytest.mark.slow, id="fork"),
    ],
)
@pytest.mark.parametrize("where", [DOWNLOAD, PLAY, MAKE_ENVS, RESTORE])
def test_a_resume_that_has_not_begun_can_be_asked_for_again(where, overrides, small_config, monkeypatch, capfd):
    assert train(small_config, "--set", "total_timesteps=256") == 0
    (run_dir,) = run_directories(small_config)
    files = contents(run_dir)
    capfd.readouterr()
    strike(monkeypatch, where)
    assert run(["resume", str(run_dir), "--no-track", "--json", *overrides]) == EXIT_STOPPED
    out, err = capfd.readouterr()
    assert out == ""
    assert f"error: stopped before training resumed; {run_dir} is unchanged" in err
    assert "Traceback" not in err
    assert run_directories(small_config) == [run_dir]
    assert contents(run_dir) == files


def test_a_resume_of_a_downloaded_run_that_has_not_begun_leaves_no_directory(small_config, monkeypatch, capfd):
    assert train(small_config) == 0
    (run_dir,) = run_directories(small_config)
    newest = find_checkpoint(run_dir)
    here = small_config.parent / "download" / "checkpoints" / newest.path.name
    shutil.copytree(newest.path, here)
    write_download(open_checkpoint(here), Download(newest=True, run_dir=Path("/on/another/machine")))
    strike(monkeypatch, MAKE_ENVS)
    assert run(["resume", str(here), "--no-track"]) == EXIT_STOPPED
    assert run_directories(small_config) == [run_dir]


IMPATIENT = """
from rl_training.runs import stopping
stopping.UNRESPONSIVE_SECONDS = 1.0
from rl_training.cli.app import main
main()
"""


@pytest.mark.slow
def test_an_environment_that_hangs_does_not_keep_a_stopped_process(small_config):
    hang = small_config.parent / "hang"
    hangs = ["--set", "env_id=case_envs:HangsWhile-v0", "--set", f"env_kwargs.path={hang}"]
    longer = ["--set", "total_timesteps=1_000_000", "--set", "checkpoint.every=64", "--offline"]
    command = [sys.executable, "-c", IMPATIENT, "train", "--config", str(small_config), *hangs, *longer]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 128"):
            break
    hang.touch()
    wait_for(hang.with_suffix(".waits").exists)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == EXIT_STOPPED
    (run_dir,) = run_directories(small_config)
    newest = max((run_dir / "checkpoints").glob("step_*"))
    why = "training did not reach its next step within 1 s of the signal"
    assert err.splitlines()[-1] == f"{why}; the run can be resumed from {newest}"
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["status"], status["stop_reason"], status["error"]) == ("KILLED", "signal", why)
