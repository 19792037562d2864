"""Deployments of an earlier version, in which the flows were a top-level package `flows`."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from services_support import BIN, REPOSITORY, TINY, Services, end, eventually

from rl_training.services.doctor import diagnose
from rl_training.services.moved_entrypoints import update_entrypoints

pytestmark = pytest.mark.services

POOL = "of-an-earlier-version"
OLD, NEW = "flows.train.train_flow", "rl_training.flows.train.train_flow"
CONFIG = {"config": "ppo/cartpole"}


def make_deployment(services: Services, name: str, **fields: Any) -> str:
    """Makes a deployment as an earlier version did, and returns its id."""
    default = services.get("/deployments/name/train-flow/default")
    kept = {key: default[key] for key in ("flow_id", "parameter_openapi_schema")}
    body = {"name": name, "entrypoint": OLD, "parameters": CONFIG, "pull_steps": [], **kept, **fields}
    return str(services.post("/deployments/", body)["id"])


def entrypoint(services: Services, deployment: str) -> str:
    return str(services.get(f"/deployments/{deployment}")["entrypoint"])


def test_the_worker_runs_a_deployment_of_an_earlier_version(services: Services) -> None:
    services.post("/work_pools/", {"name": POOL, "type": "process"})
    old = make_deployment(services, "old", work_pool_name=POOL)
    project = services.home / "project"
    (project / "flows").mkdir(parents=True)
    (project / "flows" / "train.py").write_text("raise RuntimeError('a module of the project')")
    log = services.home / "worker_of_old.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            ["env", "--default-signal=INT", str(BIN / "rl-training"), "worker", "--pool", POOL],
            env=services.environment | {"PYTHONPATH": os.pathsep.join([str(project), str(REPOSITORY / "tests")])},
            cwd=project,
            stdout=output,
            stderr=output,
        )
    try:
        assert eventually(lambda: entrypoint(services, old) == NEW, 180), log.read_text()
        assert f"deployment 'old' of an earlier version now runs {NEW}" in log.read_text()
        overrides = {**TINY, "promotion": {"enabled": False}}
        assert services.run("train-flow/old", overrides=overrides)["state"]["name"] == "Completed"
    finally:
        end(worker)


def test_doctor_names_the_old_deployment_and_one_with_code_of_its_own_is_left_alone(services: Services) -> None:
    tagged = make_deployment(services, "tagged", tags=["rl-training"])
    pulls = [{"prefect.deployments.steps.set_working_directory": {"directory": "/a/project"}}]
    theirs = make_deployment(services, "theirs", tags=["rl-training"], pull_steps=pulls)
    with temporary_settings({PREFECT_API_URL: services.api_url}), get_client(sync_client=True) as client:
        told = [finding.line() for finding in diagnose().findings if "earlier version" in finding.text]
        update_entrypoints(client)
    assert told == [
        f"problem deployments: train-flow/tagged was made by an earlier version and names {OLD}; "
        "run `rl-training deploy` to fix it"
    ]
    assert (entrypoint(services, tagged), entrypoint(services, theirs)) == (NEW, OLD)
