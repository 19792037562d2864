"""Supervision of a training thread: results, errors, interruptions, and reports that the server refuses."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT

from rl_training.config.settings import TrainConfig
from rl_training.flows import supervised_training as module
from rl_training.flows.supervised_training import FlowProgress, FlowReporter, supervise
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import TrainerState


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


class Cancel(BaseException):
    """Comes in the main thread as Prefect's own signals do."""


def test_work_runs_in_another_thread_and_its_result_comes_back() -> None:
    reports = []
    thread = supervise(threading.current_thread, stop=StopFlag(), meanwhile=lambda: reports.append(1))
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert len(reports) >= 1  # what came last is reported too


def test_an_error_of_the_work_is_raised_here_as_it_is() -> None:
    error = ValueError("loss is nan")

    def work() -> None:
        raise error

    with pytest.raises(ValueError, match="loss is nan") as caught:
        supervise(work, stop=StopFlag())
    assert caught.value is error


def test_an_interruption_asks_the_work_to_stop_and_waits_until_it_has_saved() -> None:
    stop, saved = StopFlag(), []

    def work() -> None:
        while not stop.requested:
            time.sleep(0.005)
        time.sleep(0.2)  # a checkpoint is written
        saved.append(True)

    def cancel() -> None:
        raise Cancel

    with pytest.raises(Cancel):
        supervise(work, stop=stop, meanwhile=cancel)
    assert stop.cause == "signal"
    assert saved == [True]


def test_work_that_does_not_stop_is_left_behind_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.1)
    release = threading.Event()

    def cancel() -> None:
        raise Cancel

    with pytest.raises(Cancel):  # and does not wait for the work, which waits for this test
        supervise(release.wait, stop=StopFlag(), meanwhile=cancel)
    release.set()


def trainer_state(tmp_path: Path, **values: Any) -> TrainerState:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", total_timesteps=1_000)
    return TrainerState(config=config, run_dir=tmp_path, run_uid="u", stop=StopFlag(), **values)


EVALUATION = {"eval/return_mean": 9.876, "eval/ci_low": 9.0, "eval/ci_high": 10.5, "eval/episodes": 3.0}


def test_the_training_thread_leaves_notes_and_calls_no_one(tmp_path: Path) -> None:
    progress = FlowProgress()
    progress.on_train_start(trainer_state(tmp_path, num_timesteps=100))
    assert progress.num_timesteps == 100
    progress.on_update_end(trainer_state(tmp_path, num_timesteps=400))
    progress.on_eval_end(trainer_state(tmp_path, num_timesteps=500, metrics=EVALUATION))
    assert progress.num_timesteps == 400
    assert progress.evaluations.get_nowait() == {"num_timesteps": 500, **EVALUATION}


def test_progress_is_written_at_its_cadence_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from uuid import uuid4

    created, updated, bar = [], [], uuid4()
    monkeypatch.setattr(module, "create_progress_artifact", lambda percent, **options: created.append(percent) or bar)
    monkeypatch.setattr(
        module, "update_progress_artifact", lambda artifact, percent, **options: updated.append(percent)
    )
    progress = FlowProgress()
    reporter = FlowReporter(progress, total_timesteps=1_000, run_uid="u")
    for steps in (0, 250, 500, 1_000, 1_000):
        progress.num_timesteps = steps
        reporter()
    assert created == [0.0]
    assert updated == [100.0]  # those between came within the five seconds of the first


def test_a_server_that_refuses_reports_is_reported_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("server is away")

    monkeypatch.setattr(module, "create_progress_artifact", refuse)
    monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("run"))
    progress = FlowProgress()
    reporter = FlowReporter(progress, total_timesteps=1_000, run_uid="u")
    for steps in (1_000, 1_001, 1_002):
        progress.num_timesteps = steps
        reporter()
    assert [record.getMessage() for record in caplog.records] == [
        "progress can't be reported to Prefect, training continues: server is away"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "env"),
    [(signal.SIGINT, "Plain"), (signal.SIGTERM, "TakesSignals"), (signal.SIGHUP, "TakesSignals")],
)
def test_a_signal_stops_a_flow_of_the_command_line_resumably(
    number: signal.Signals, env: str, home: Path, prefect_template: Path, client: Any, tmp_path: Path
) -> None:
    """Exit code 75, the run killed in MLflow with all that it has, and the flow's summary on stdout."""
    shutil.copytree(prefect_template, home / "prefect")
    command = [sys.executable, "-m", "rl_training", "flow", "train", "--config", "ppo/cartpole", "--json"]
    command += ["--set", "total_timesteps=5000000", "--set", "evaluation.episodes=1"]
    command += ["--set", f"env_id=case_envs:{env}-v0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    )
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if "evaluation mean" in line:
            break
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, "".join([*told, err])
    assert "Traceback" not in "".join([*told, err])
    summary = json.loads(out.splitlines()[-1])
    assert summary["stop_reason"] == "signal"
    assert summary["num_timesteps"] >= 10_000
    assert Path(summary["checkpoint"], "manifest.json").is_file()
    run = client.get_run(summary["run_id"])
    assert run.info.status == "KILLED"
    assert run.data.metrics["eval/episodes"] == 1.0
