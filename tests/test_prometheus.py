"""The file of a run under way for Prometheus."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mlflow_store import make_run, ship_all, tracked_run
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_for

from rl_training import run_layout
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping.prometheus_file import VARIABLE, PrometheusFile, open_prometheus_file


def read_values(file: Path) -> dict[str, float]:
    families = text_string_to_metric_families(file.read_text())
    return {sample.name.removeprefix("rl_training_"): sample.value for family in families for sample in family.samples}


def test_the_file_says_how_far_a_run_is_and_goes_with_it(client, tmp_path: Path) -> None:
    run_dir = tracked_run()
    metrics = {"train/loss": 1.0, "rollout/episode_return_mean": 2.0}
    lines = [{"event": "update", "step": step, "time": 1.7e9, "metrics": metrics} for step in (0, 50, 100)]
    (run_dir / run_layout.METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shipment = ship_all(run_dir)
    file = PrometheusFile(tmp_path, shipment)
    file.record("connection refused")
    (path,) = tmp_path.glob("*.prom")
    assert shipment.description["run_uid"] in path.name
    values = read_values(path)
    assert values.pop("shipper_time_seconds") > 1.7e9
    assert values == {
        "total_timesteps": 100_000,
        "num_timesteps": 100,
        "values_sent": 6,
        "values_unsent": 0,
        "shipper_failing": 1,
    }
    file.remove()
    assert not path.exists()


def test_nothing_is_written_unless_asked_for_or_without_the_library(
    client, tmp_path: Path, monkeypatch, caplog
) -> None:
    shipment = ship_all(tracked_run())
    assert open_prometheus_file(shipment) is None
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert open_prometheus_file(shipment) is None
    assert "pip install 'rl-training[prometheus]'" in caplog.text


@pytest.mark.slow
def test_the_shipper_writes_it_while_a_run_trains(client, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    run_dir, config = make_run()
    session = start_tracking(run_dir, config)
    session.log(500, {"train/loss": 1.0}, "update")
    wait_for(lambda: any(read_values(path)["values_sent"] == 1 for path in tmp_path.glob("*.prom")), 180)
    session.finish("FINISHED", stop_reason="completed")
    wait_for(lambda: not list(tmp_path.glob("*.prom")), 180)
