"""Run directories that a power cut has damaged, those of earlier versions included, are repaired."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from mlflow_store import ship_all, stored_points, tracked_run

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping.sync import sync
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()

SETTINGS = {
    "algo": "ppo",
    "env_id": "case_envs:Plain-v0",
    "num_envs": 1,
    "total_timesteps": 48,
    "rollout_steps": 8,
    "batch_size": 8,
    "network": {"hidden": [4]},
    "evaluation": {"every": 1000, "episodes": 1, "num_envs": 1},
}


def trained(trainer: Trainer) -> TrainResult:
    start = trainer.num_timesteps
    with start_tracking(trainer.run.run_dir, trainer.config, offline=True, from_step=start) as session:
        trainer.callbacks.append(session.callback)
        return trainer.train()


def policy(run_dir: Path) -> Any:
    (newest,) = (run_dir / "checkpoints").glob("step_000000000048")
    return json.loads((newest / "manifest.json").read_text())["policy_sha256"]


@pytest.mark.usefixtures("home")
def test_a_run_whose_description_was_emptied_resumes_from_its_checkpoints(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_from_mapping(SETTINGS)
    expected = policy(trained(MANAGER.setup(config)).run_dir)
    stopped = trained(MANAGER.setup(config, stop=StopAfterPolls(40)))
    assert 0 < stopped.num_timesteps < 48
    for name in ("metadata.json", "config.yaml", "tracking.json", "metrics.jsonl"):
        (stopped.run_dir / name).write_bytes(b"")
    with pytest.raises(TrackingError, match=r"tracking\.json is damaged; resuming the run writes it again"):
        sync(stopped.run_dir)
    caplog.set_level(logging.WARNING)
    done = trained(MANAGER.resume(stopped.run_dir))
    assert (done.run_uid, done.run_dir, policy(done.run_dir)) == (stopped.run_uid, stopped.run_dir, expected)
    assert "holds no run: metadata.json can't be read (it is not JSON: Expecting value" in caplog.text
    assert f"it is written again from {stopped.checkpoint}" in caplog.text
    metadata = json.loads((done.run_dir / "metadata.json").read_text())
    assert metadata["run_uid"] == stopped.run_uid
    assert metadata["recovered_from"] == stopped.checkpoint.name  # type: ignore[union-attr]
    assert json.loads((done.run_dir / "tracking.json").read_text())["run_uid"] == stopped.run_uid
    assert (done.run_dir / "config.yaml").read_text() == (done.checkpoint / "config.yaml").read_text()  # type: ignore[operator]


def log(run_dir: Path, steps: range, time_metric: float) -> None:
    metrics = MetricLog(run_dir)
    for step in steps:
        metrics.log(step, {"train/policy_loss": step / 7, "time/wall_seconds": time_metric}, "update")
    metrics.close()


def sent(client: Any, run_id: str) -> dict[int, float]:
    return {step: value for key, step, value, _ in stored_points(client, run_id) if key == "train/policy_loss"}


def test_points_are_sent_once_where_the_record_ends_before_what_was_sent_of_it(client: Any) -> None:
    run_dir = tracked_run()
    log(run_dir, range(0, 1000, 100), 123456.789012345)
    run_id = ship_all(run_dir).address.run_id
    lines = (run_dir / run_layout.METRICS).read_bytes().splitlines(keepends=True)
    (run_dir / run_layout.METRICS).write_bytes(b"".join(lines[:4]))
    log(run_dir, range(400, 1200, 100), 1.0)  # in fewer bytes than before
    shipment = ship_all(run_dir)
    assert sent(client, run_id) == {step: step / 7 for step in range(0, 1200, 100)}
    assert (shipment.report().sent, shipment.report().unsent) == (24, 0)
    log(run_dir, range(1200, 1400, 100), 1.0)
    ship_all(run_dir)
    assert sent(client, run_id) == {step: step / 7 for step in range(0, 1400, 100)}


def test_points_are_sent_once_if_lines_beyond_the_recorded_position_are_written_again(client: Any) -> None:
    """The record of what was sent is older than the power cut; what is on record is in the file."""
    run_dir = tracked_run()
    log(run_dir, range(0, 400, 100), 1.0)
    run_id = ship_all(run_dir).address.run_id
    earlier = (run_dir / run_layout.SHIPPED).read_bytes()
    kept = (run_dir / run_layout.METRICS).read_bytes()
    log(run_dir, range(400, 1000, 100), 1.0)
    ship_all(run_dir)
    (run_dir / run_layout.SHIPPED).write_bytes(earlier)
    (run_dir / run_layout.METRICS).write_bytes(kept)
    log(run_dir, range(400, 1200, 100), 2.0)  # made again, at another time
    shipment = ship_all(run_dir)
    assert sent(client, run_id) == {step: step / 7 for step in range(0, 1200, 100)}
    assert (shipment.report().sent, shipment.report().unsent) == (24, 0)


@pytest.mark.parametrize("damaged", [("shipped.json",), ("mlflow.json",), ("shipped.json", "mlflow.json")])
@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"[1]"])
def test_what_is_in_mlflow_is_looked_up_there_where_its_record_is_damaged(
    damaged: tuple[str, ...], content: bytes, client: Any
) -> None:
    run_dir = tracked_run()
    log(run_dir, range(0, 500, 100), 1.0)
    run_id = ship_all(run_dir).address.run_id
    for name in damaged:
        (run_dir / name).write_bytes(content)
    log(run_dir, range(500, 800, 100), 1.0)
    shipment = ship_all(run_dir)
    assert shipment.address.run_id == run_id
    assert sent(client, run_id) == {step: step / 7 for step in range(0, 800, 100)}
    assert (shipment.report().sent, shipment.report().unsent) == (16, 0)


@pytest.mark.parametrize(
    "tail", [b"\0" * 60, b"\0" * 60 + b"\n", b'{"event": "upd', b"\0\n" + b'{"event": "update", "step": 300}\n']
)
def test_a_record_is_cut_off_where_its_damage_begins(tail: bytes, tmp_path: Path) -> None:
    log(tmp_path, range(0, 300, 100), 1.0)
    path = tmp_path / run_layout.METRICS
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    log(tmp_path, range(200, 500, 100), 1.0)
    assert path.read_bytes().startswith(whole)
    assert [json.loads(line)["step"] for line in path.read_bytes().splitlines()] == [0, 100, 200, 300, 400]
