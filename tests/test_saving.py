"""Saving in the background: what training waits for, that a slow disk changes nothing, and what a full disk ends."""

from __future__ import annotations

import json
import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_examples import CONFIG
from off_policy_runs import Events, dqn
from waiting import LIMIT, wait_for

from rl_training.config import serialization
from rl_training.config.serialization import dump_config
from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointNotWritten, NumericError, RunTakenOver
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runs.locks import record_takeover
from rl_training.runs.progress import Progress
from rl_training.runtime import trainer as trainer_module
from rl_training.runtime.callbacks import Callback, CallbackList, TrainerState
from rl_training.runtime.checkpoint import (
    Checkpoint,
    load_policy_state,
    load_trainer_state,
    newest_good,
    open_checkpoint,
)
from rl_training.runtime.checkpoint_saver import Contents, Saver
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer import Trainer

MANAGER = DefaultExperimentManager()
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "total_timesteps": 240,
    "learning_starts": 20,
    "buffer_size": 24,
    "batch_size": 8,
    "train_freq": 4,
    "logging": {"every": 8},
    "network": {"hidden": [8]},
    "evaluation": {"every": 60, "episodes": 2, "num_envs": 2},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def at_fsync(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Has a function called before each sync to disk of the thread that saves."""
    sync = os.fsync

    def install(before: Callable[[], Any]) -> None:
        def fsync(descriptor: int) -> None:
            if threading.current_thread().name.startswith("saver"):
                before()
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    return install


class At(Callback):
    """Does something after the updates that end at a step."""

    def __init__(self, **actions: Callable[[], Any]) -> None:
        self.actions = {int(step.removeprefix("step_")): action for step, action in actions.items()}
        self.updates = 0

    def on_update_end(self, state: TrainerState) -> None:
        self.updates += 1
        if state.num_timesteps in self.actions:
            self.actions[state.num_timesteps]()

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_training_continues_while_a_checkpoint_is_written(at_fsync: Any, home: Path) -> None:
    """The disk is held from the checkpoint at 40 on, until training is at 80."""
    go, there = threading.Event(), []
    go.set()

    def look() -> None:
        there.extend(names(next((home / "runs").iterdir()) / "checkpoints"))
        go.set()

    at_fsync(lambda: go.wait(LIMIT))
    config = dqn(**{**SMALL, "buffer_size": 200, "checkpoint": {"every": 40}, "evaluation": {"every": 999}})
    result = MANAGER.setup(config, [At(step_36=go.clear, step_76=look)]).train()
    assert [name for name in there if name.startswith("step_")] == ["step_000000000000"]
    assert names(result.run_dir / "checkpoints")[-2:] == ["step_000000000200", "step_000000000240"]


def contents_of(run_dir: Path) -> dict[str, Any]:
    """All that a run's checkpoints hold, their moments of writing and the run's identity apart."""
    contents: dict[str, Any] = {"best": (run_dir / "checkpoints" / "best.json").read_text()}
    for path in sorted((run_dir / "checkpoints").glob("step_*")):
        manifest = json.loads((path / "manifest.json").read_text())
        contents[path.name] = [manifest[key] for key in ("files", "policy_sha256", "extra")]
    return contents


class Points(Events):
    """Events that leave it to the trainer when a checkpoint is complete."""

    on_checkpoint_end = Callback.on_checkpoint_end


@pytest.mark.slow
@pytest.mark.parametrize("listener", [Points, Events])
def test_how_fast_the_disk_is_changes_no_checkpoint_and_no_metric(at_fsync: Any, listener: type[Events]) -> None:
    """The ring of 24 transitions is overwritten while the checkpoints are written, one every 10."""
    config = dqn(**{**SMALL, "checkpoint": {"every": 10, "keep_last": 99}})
    outcomes = []
    for seconds in (0.0, 0.01):
        at_fsync(lambda seconds=seconds: time.sleep(seconds))
        events = listener()
        result = MANAGER.setup(config, [events, At()]).train()
        outcomes.append((contents_of(result.run_dir), events.points, events.seen, str(result.best_checkpoint)[-12:]))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 26  # the first, 24 of the cadence, and the record of the best
    assert events.seen.count(("checkpoint", 20)) == (listener is Events)


def test_only_callbacks_that_override_an_event_listen_for_it() -> None:
    assert CallbackList([Callback(), Events()]).listens("on_checkpoint_end")
    assert not CallbackList([Callback(), At(), Points()]).listens("on_checkpoint_end")


# A disk that is full: the system refuses files of more than some bytes, for the entire process.


def fill() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))


def make_space() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def full_disk() -> Iterator[None]:
    fill()
    try:
        yield
    finally:
        make_space()


@pytest.fixture(autouse=True)
def _space() -> Iterator[None]:
    yield
    make_space()


def filled_after(trainer: Trainer, step: int) -> Callable[[], None]:
    """Returns what fills the disk once the checkpoint of a step is there, and all that comes with it."""

    def action() -> None:
        wait_for(lambda: (trainer.run.checkpoints / f"step_{step:012d}").exists())
        trainer._saver._thread.submit(fill).result()

    return action


def test_a_disk_that_is_full_for_a_while_costs_the_checkpoints_of_that_while(caplog: pytest.LogCaptureFixture) -> None:
    """The disk is full when the checkpoints of steps 100 and 150 are due."""
    config = dqn(**{**SMALL, "checkpoint": {"every": 50, "keep_last": 99}, "evaluation": {"every": 999, "episodes": 1}})
    whole = MANAGER.setup(config, [At()]).train()
    actions = At()
    trainer = MANAGER.setup(config, [actions])

    def empty() -> None:
        wait_for(lambda: trainer._saver.failed or trainer._saver._saving is None)
        make_space()

    actions.actions = {92: filled_after(trainer, 50), 180: empty}
    result = trainer.train()
    checkpoints = result.run_dir / "checkpoints"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{result.run_dir}/replay can't be written: File too large; the newest good checkpoint is "
        f"{checkpoints}/step_000000000050; training continues, and saves again when the next checkpoint is due"
    ] * 2
    assert names(checkpoints) == ["best.json", *(f"step_{step:012d}" for step in (0, 50, 200, 240))]
    assert not list(result.run_dir.rglob(".tmp-*"))
    states = [load_trainer_state(open_checkpoint(str(run.checkpoint))) for run in (whole, result)]
    assert states[0]["progress"] == states[1]["progress"]
    buffers = [MANAGER.resume(run.run_dir, total_timesteps=300).buffer for run in (whole, result)]  # type: ignore[attr-defined]
    for name, array in buffers[0].arrays().items():
        np.testing.assert_array_equal(array, buffers[1].arrays()[name], err_msg=name)


def test_the_last_checkpoint_is_tried_again_until_the_disk_has_room(caplog: pytest.LogCaptureFixture) -> None:
    room = threading.Timer(0.5, make_space)

    def fill_for_a_moment() -> None:
        fill()
        room.start()

    config = dqn(**{**SMALL, "evaluation": {"every": 999, "episodes": 1}})
    result = MANAGER.setup(config, [At(step_240=fill_for_a_moment)]).train()
    room.join()
    assert (result.stop_reason, open_checkpoint(str(result.checkpoint)).num_timesteps) == ("completed", 240)
    assert "step_000000000000; trying again in 1 s" in caplog.text


def test_a_last_checkpoint_that_cannot_be_written_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "LAST_PAUSES", (0.01,))
    actions = At()
    config = dqn(**{**SMALL, "checkpoint": {"every": 150}, "evaluation": {"every": 999, "episodes": 1}})
    trainer = MANAGER.setup(config, [actions])
    actions.actions[200] = filled_after(trainer, 150)
    with pytest.raises(CheckpointNotWritten) as failed:
        trainer.train()
    make_space()
    newest, skipped = newest_good(trainer.run.checkpoints)
    assert newest is not None
    assert (newest.num_timesteps, skipped) == (150, [])
    assert str(failed.value) == (
        f"{trainer.run.run_dir}/replay can't be written: File too large; the newest good checkpoint is {newest.path}"
    )
    assert (trainer.state.stop_reason, trainer.state.checkpoint) == ("failed", newest)
    resumed = MANAGER.resume(trainer.run.run_dir).train()
    assert (resumed.num_timesteps, resumed.run_uid) == (240, trainer.run.run_uid)


def test_a_run_that_another_process_has_taken_over_is_not_saved(tmp_path: Path) -> None:
    actions, run_dir = At(), tmp_path / "run"
    trainer = MANAGER.setup(dqn(**{**SMALL, "run_dir": run_dir, "checkpoint": {"every": 60}}), [actions])

    def give() -> None:
        wait_for(lambda: (run_dir / "checkpoints" / "step_000000000180").exists())
        record_takeover(run_dir, "process 7 elsewhere")

    actions.actions[200] = give
    with pytest.raises(RunTakenOver, match="process 7 elsewhere"):
        trainer.train()
    newest, _ = newest_good(trainer.run.checkpoints)
    assert newest is not None
    assert newest.num_timesteps == 180


# The saver by itself.


class Run:
    """A saver, the progress of its run, and the checkpoints that the saver reports as complete."""

    def __init__(self, run_dir: Path) -> None:
        self.whole: list[tuple[int, bool]] = []
        self.progress = Progress()
        self.saver = Saver(TrainingRun(run_dir, "uid"), CONFIG, self.note)

    def note(self, checkpoint: Checkpoint, is_best: bool) -> None:
        self.whole.append((checkpoint.num_timesteps, is_best))

    def begin(self, step: int, *, weights: Any = None, best: float | None = None) -> None:
        self.progress.num_timesteps = step
        if best is not None:
            self.progress.best_return = best
        weights = torch.ones(3) + step if weights is None else weights
        contents = Contents(policy={"weights": weights}, trainer={"array": np.ones(2)}, extra={}, shards=None)
        self.saver.begin(self.progress, lambda: contents, is_best=best is not None)


def test_what_changes_after_it_was_handed_over_is_saved_as_it_was(tmp_path: Path, at_fsync: Any) -> None:
    run, go = Run(tmp_path), threading.Event()
    at_fsync(lambda: go.wait(LIMIT))
    weights = torch.zeros(3)
    run.begin(5, weights=weights)
    weights += 1
    run.progress.iteration = 9
    go.set()
    run.saver.close()
    checkpoint = open_checkpoint(tmp_path / "checkpoints" / "step_000000000005")
    assert load_policy_state(checkpoint)["weights"].tolist() == [0.0, 0.0, 0.0]
    assert load_trainer_state(checkpoint)["progress"]["iteration"] == 0
    assert run.whole == [(5, False)]


def test_a_moment_is_saved_once_and_a_nan_never(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(5)
    run.begin(5)
    with pytest.raises(NumericError, match=r"weights\[0\] is NaN or infinite at step 6"):
        run.begin(6, weights=torch.tensor([float("nan")]))
    run.saver.close()
    assert run.whole == [(5, False)]
    assert names(tmp_path / "checkpoints") == ["step_000000000005"]


def test_a_run_writes_its_settings_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped: list[TrainConfig] = []
    monkeypatch.setattr(serialization, "dump_config", lambda config: dumped.append(config) or dump_config(config))
    run = Run(tmp_path)
    for step in (5, 6):
        run.begin(step)
    run.saver.close()
    assert dumped == [CONFIG]
    for name in ("step_000000000005", "step_000000000006"):
        assert open_checkpoint(tmp_path / "checkpoints" / name).config_text() == dump_config(CONFIG)


def test_a_best_checkpoint_that_could_not_be_written_is_no_best(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(5, best=1.0)
    run.saver.end()
    with full_disk():
        run.begin(6, best=3.0)
        run.saver.end()
    assert run.progress.best_return == 1.0
    run.begin(7, best=2.0)
    run.saver.close()
    assert run.whole == [(5, True), (7, True)]
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text())["return_mean"] == 2.0


def test_a_save_that_fails_is_known_before_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with full_disk():
        run.begin(5)
        wait_for(lambda: run.saver.failed)
    run.begin(5)  # the same moment, which is not saved yet
    run.saver.close()
    assert run.whole == [(5, False)]
