"""The base job templates of docker/pools: what Prefect's workers make of them is what Kubernetes and Docker take."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import kubernetes_validate
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect_docker.worker import DockerWorkerJobConfiguration
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

POOLS = Path(__file__).resolve().parents[2] / "docker" / "pools"
HEARTBEAT = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
IMAGE = "registry.example.org/rl-training-worker:0.1.0"
RELEASES = ("1.30", "1.37")


def render(name: str, kind: type, **variables: Any) -> Any:
    """Returns what a worker makes of a pool's template for a flow run with these job variables."""
    template = json.loads((POOLS / name).read_text())
    values = {"image": IMAGE, "env": HEARTBEAT, **variables}
    nowhere = PrefectClient(
        "http://127.0.0.1:9/api"
    )  # asked for blocks and variables, which the template names none of
    configuration = asyncio.run(kind.from_template_and_values(template, values, client=nowhere))  # type: ignore[attr-defined]
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="brave-owl"))
    return configuration


def render_job(**variables: Any) -> dict[str, Any]:
    job: dict[str, Any] = render("kubernetes.json", KubernetesWorkerJobConfiguration, **variables).job_manifest
    return job


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("variables", [{}, {"gpus": "1", "memory": "32Gi", "service_account_name": "trainer"}])
def test_kubernetes_takes_the_job(release: str, variables: dict[str, Any]) -> None:
    job = render_job(**variables)
    kubernetes_validate.validate(job, release)
    strict = copy.deepcopy(job)
    for misplaced in ("parallelism", "completions"):  # Prefect requires them where Kubernetes ignores them
        assert strict["spec"]["template"]["spec"].pop(misplaced) == 1
    kubernetes_validate.validate(strict, release, strict=True)


def test_a_job_asks_for_the_gpu_and_gets_its_logins_from_a_secret() -> None:
    pod = render_job(gpus="1", memory="32Gi")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "32Gi"},
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "1"},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "rl-training"}}]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["RL_TRAINING_HOME"] == "/data"
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert not [name for name in environment if name.startswith("MLFLOW_")]
    assert container["args"] == ["prefect", "flow-run", "execute"]  # the image's entrypoint stays
    assert pod["terminationGracePeriodSeconds"] == 120
    assert pod["securityContext"]["runAsUser"] == 10001


def test_docker_runs_the_image_without_rights_and_reads_passwords_from_files() -> None:
    configuration = render("docker.json", DockerWorkerJobConfiguration, mem_limit="16g")
    assert configuration.image == IMAGE
    assert configuration.volumes == ["rl-training:/data", "/etc/rl-training:/run/secrets:ro"]
    assert configuration.mem_limit == "16g"
    assert configuration.container_create_kwargs["cap_drop"] == ["ALL"]
    assert configuration.env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert configuration.auto_remove


@pytest.mark.parametrize("name", ["kubernetes.json", "docker.json"])
def test_each_variable_of_a_pool_is_used_and_described(name: str) -> None:
    template = json.loads((POOLS / name).read_text())
    text = json.dumps(template["job_configuration"])
    for variable, description in template["variables"]["properties"].items():
        assert f"{{{{ {variable} }}}}" in text
        assert description["description"].endswith(".")
