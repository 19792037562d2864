"""A flow of the command line that is killed leaves none of its processes behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from services_support import Services, eventually
from waiting import LIMIT

pytestmark = pytest.mark.services


def list_runs(client: Any) -> list[Any]:
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def test_workers_simulators_and_shipper_end_with_a_killed_command(
    services: Services, home: Path, client: Any, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "{algo: ppo, env_id: 'case_envs:SpawnsChild-v0', num_envs: 2, vectorization: async, total_timesteps: 1e7,"
        " evaluation: {every: 1e7}}"
    )
    command = [sys.executable, "-m", "rl_training", "flow", "train", "--config", str(config)]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.DEVNULL, env={**os.environ, "PREFECT_API_URL": services.api_url}
    )
    try:
        assert eventually(lambda: list(home.glob("runs/*/checkpoints/step_*/manifest.json")), 180)
        assert eventually(lambda: list_runs(client), 180)  # the run begins in MLflow after training does
        family = psutil.Process(process.pid).children(recursive=True)
        lines = {child: " ".join(child.cmdline()) for child in family}
    finally:
        process.kill()
        process.wait()
    for part in ("rl_training.envs.vector.worker", "rl_training.tracking.shipping.shipper", "time.sleep(600)"):
        assert any(part in line for line in lines.values()), lines
    shippers = [child for child, line in lines.items() if "rl_training.tracking.shipping.shipper" in line]
    _, late = psutil.wait_procs([child for child in family if child not in shippers], timeout=LIMIT)
    assert [child for child in late if child.status() != psutil.STATUS_ZOMBIE] == []
    _, late = psutil.wait_procs(shippers, timeout=LIMIT)
    assert [child for child in late if child.status() != psutil.STATUS_ZOMBIE] == []
    (run,) = list_runs(client)
    assert run.info.status == "KILLED"
