"""Further attempts at a flow run: they continue its run from the newest checkpoint, whatever ended the earlier one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from services_support import TINY, Services, eventually, mlflow_run, processes_of

pytestmark = pytest.mark.services

SLOW: dict[str, Any] = {
    **TINY,
    "env_id": "case_envs:NeedsTokenSlowWhile-v0",
    "total_timesteps": 10_000,
    "checkpoint": {"every": 250, "keep_last": 20},
    "evaluation": {"every": 1_000, "episodes": 2, "final_episodes": 5, "video": False},
    "promotion": {"enabled": False},
}
TOKEN = {"api_token": "${env:CASE_TOKEN}"}
"""A secret that is given by reference."""


class FlowRun:
    """A flow run of train-flow/default, through all its attempts; it takes minutes while there is a file at `gate`."""

    def __init__(self, services: Services, client: Any, gate: Path) -> None:
        self.services, self.client = services, client
        deployment = services.get("/deployments/name/train-flow/default")["id"]
        overrides = {**SLOW, "env_kwargs": {**TOKEN, "path": str(gate)}}
        body = {"parameters": {"overrides": overrides}}
        self.id = services.post(f"/deployments/{deployment}/create_flow_run", body)["id"]

    def trains(self, home: Path, steps: int) -> Path:
        """Waits until it has trained for more steps in a home; returns the run's directory there."""

        def there() -> list[Path]:
            found = (home / "runs").glob("*/tracking.json")
            return [path.parent for path in found if self.id in path.read_text() and newest_step(path.parent) >= steps]

        found = eventually(there, 180)
        assert found, f"{self.state()}\n{(self.services.home / 'worker.log').read_text()}"
        return Path(found[0])

    def process(self, run_dir: Path) -> psutil.Process:
        return psutil.Process(json.loads((run_dir / "tracking.json").read_text())["process"]["pid"])

    def state(self) -> str:
        return str(self.services.get(f"/flow_runs/{self.id}")["state"]["name"])

    def comes_to(self, state: str) -> None:
        assert eventually(lambda: self.state() == state, 180), (self.services.home / "worker.log").read_text()

    def set_state(self, kind: str, name: str, *, force: bool = False) -> None:
        state = {"state": {"type": kind, "name": name}, "force": force}
        self.services.post(f"/flow_runs/{self.id}/set_state", state)

    def retry(self, **environment: str) -> None:
        """Schedules the flow run again, as the button in the UI does, with other environment variables."""
        self.services.patch("/work_pools/rl-training", {"is_paused": True})  # until it is as it shall be
        self.set_state("SCHEDULED", "AwaitingRetry")
        if environment:
            self.services.patch(f"/flow_runs/{self.id}", {"job_variables": {"env": environment}})
        self.services.patch("/work_pools/rl-training", {"is_paused": False})

    def mlflow(self) -> Any:
        return mlflow_run(self.client, {"id": self.id})

    def attempts(self) -> list[int]:
        """Returns the steps from which its attempts have trained, as MLflow knows them."""
        return [attempt["from_step"] for attempt in json.loads(self.mlflow().data.tags.get("attempts", "[]"))]


def newest_step(run_dir: Path) -> int:
    names = [path.parent.name for path in run_dir.glob("checkpoints/step_*/manifest.json")]
    return max((int(name.removeprefix("step_")) for name in names), default=-1)


def test_a_flow_run_is_cancelled_killed_moved_thought_dead_and_ends_as_one_run(
    services: Services, services_client: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "slow"
    gate.touch()
    run = FlowRun(services, services_client, gate)

    # Cancelled, and tried again from the UI.
    run_dir = run.trains(services.home, 500)
    run.mlflow()  # the run begins in MLflow after training does
    run.set_state("CANCELLING", "Cancelling")
    run.comes_to("Cancelled")
    cancelled_at = newest_step(run_dir)
    assert eventually(lambda: run.mlflow().info.status == "KILLED", 180)
    run.retry()

    # SIGKILL. Only MLflow knows the run at the place of the retry, as on another machine.
    run.trains(services.home, cancelled_at + 250)
    assert eventually(lambda: run.attempts() == [0, cancelled_at], 180)  # the other machine learns it from there
    run.process(run_dir).kill()
    run.comes_to("Crashed")
    assert eventually(lambda: not processes_of(run_dir), 180)
    # The worker looks at the crash seconds after its runner, with these words at the end: a retry in between would be
    # taken for the attempt that crashed, and marked.
    looked = "flow_runs.worker - Check whether the flow run exceeded its memory"
    assert eventually(lambda: looked in (services.home / "worker.log").read_text(), 180)
    uploaded = [entry.path for entry in services_client.list_artifacts(run.mlflow().info.run_id, "checkpoints")]
    there = max(int(path.rpartition("_")[2]) for path in uploaded if "step_" in path)
    shutil.move(run_dir, tmp_path / "away")
    home = tmp_path / "home"
    run.retry(RL_TRAINING_HOME=str(home), MLFLOW_TRACKING_URI=f"sqlite:///{services.home}/mlflow.db")

    # Asleep, and thought dead: set to Crashed as the automation for flow runs without a heartbeat does.
    new_dir = run.trains(home, there + 250)
    sleeper = run.process(new_dir)
    sleeper.suspend()
    slept_at = newest_step(new_dir)
    run.set_state("CRASHED", "Crashed", force=True)
    gate.unlink()
    run.retry()
    run.comes_to("Completed")
    files = [path for path in new_dir.rglob("*") if path.is_file() and path.name != "shipper.log"]
    before = {path: path.read_bytes() for path in files}
    sleeper.resume()
    assert eventually(lambda: not sleeper.is_running(), 180)

    # Nothing changed when it woke up, and all was one run.
    assert {path: path.read_bytes() for path in new_dir.rglob("*") if path in before} == before
    assert run.state() == "Completed"
    finished = run.mlflow()
    assert finished.info.status == "FINISHED"
    assert run.attempts() == [0, cancelled_at, there, slept_at]
    points = services_client.get_metric_history(finished.info.run_id, "eval/return_mean")
    assert sorted(point.step for point in points) == list(range(1_000, 11_000, 1_000))
    lines = [json.loads(line) for line in (new_dir / "metrics.jsonl").read_text().splitlines()]
    keys = [(key, line["step"]) for line in lines for key in line["metrics"]]
    assert len(keys) == len(set(keys))
