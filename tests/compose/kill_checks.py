"""Containers that are killed, restarted and stopped during training lose nothing."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

from commands import eventually, require, say
from flow_checks import LEARNER, PATIENCE, Flows
from network_checks import mlflow_authorization

KILLED = ("postgres", "mlflow", "prefect", "worker")
LONG: dict[str, Any] = {
    **LEARNER,
    "total_timesteps": 100_000,
    "evaluation": {"every": 10_000, "episodes": 3, "final_episodes": 5, "video": False},
    "checkpoint": {"every": 10_000},
    "promotion": {"enabled": False},
}
"""Long enough that a container is killed while it trains."""
UPLOAD_SECONDS = 20.0
"""How long the upload takes during which MLflow is told to stop: longer than Docker's own patience, which is 10 s."""


def check_kills(flows: Flows, seconds: dict[str, float]) -> None:
    """Kills each container while a run trains, starts it again, and waits until the run has completed."""
    evaluations: dict[str, list[tuple[int, float]]] = {}
    for service in KILLED:
        began = time.monotonic()
        flow_run = flows.user.begin("train-flow/default", overrides=LONG)
        eventually(lambda run=flow_run: flows.trains(run), PATIENCE, f"flow run {flow_run} trains")
        say(f"killing {service}")
        flows.stack.compose("kill", service)
        flows.stack.start(service)
        if service == "worker":
            flows.wait(flow_run, "Crashed")
            time.sleep(5)  # the worker reports the crash a second time, and would mark a retry that was quicker
            done = flows.user.prefect("flow-run", "retry", flow_run)
            require(done.returncode == 0, done.stdout + done.stderr)
        state = flows.wait(flow_run, "Completed", "Failed", "Crashed", "Cancelled")
        require(state == "Completed", f"with {service} killed, the flow run ended {state}")
        run_id = flows.note(flow_run)
        evaluations[service] = _evaluations(flows, run_id)
        require(
            evaluations[service] == evaluations[KILLED[0]],
            f"one seed, one training, whatever was killed, and the evaluations differ: {evaluations}",
        )
        flows.require_nothing_lost()
        seconds[f"kill {service}"] = round(time.monotonic() - began, 1)


def check_graceful_stop(flows: Flows) -> None:
    """MLflow, told to stop, answers the upload that is under way first."""
    address = flows.stack.mlflow_uri.removeprefix("http://")
    run = next(iter(flows.completed.values()))
    root = flows.registry.get_run(run).info.artifact_uri.removeprefix("mlflow-artifacts:/")
    path, answers, under_way = f"/api/2.0/mlflow-artifacts/artifacts/{root}/slow.bin", [], threading.Event()

    def upload() -> None:
        connection = http.client.HTTPConnection(address, timeout=300)
        connection.putrequest("PUT", path)
        pieces, piece = 40, b"x" * 1024
        connection.putheader("Content-Length", str(pieces * len(piece)))
        for name, value in mlflow_authorization(flows.stack).items():
            connection.putheader(name, value)
        connection.endheaders()
        try:
            for _ in range(pieces):
                connection.send(piece)
                time.sleep(UPLOAD_SECONDS / pieces)
                under_way.set()
            answers.append(connection.getresponse().status)
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=upload)
    thread.start()
    require(under_way.wait(60), "the upload does not begin")
    flows.stack.compose("stop", "mlflow")
    thread.join()
    flows.stack.start("mlflow")
    require(answers == [200], f"MLflow, told to stop during an upload, answered {answers}")
    sizes = {file.path: file.file_size for file in flows.registry.list_artifacts(run)}
    require(sizes.get("slow.bin") == 40 * 1024, f"the upload is not there: {sizes}")


def _evaluations(flows: Flows, run_id: str) -> list[tuple[int, float]]:
    points = flows.registry.get_metric_history(run_id, "eval/return_mean")
    return sorted((point.step, point.value) for point in points)
