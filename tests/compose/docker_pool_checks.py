"""Prefect's Docker worker on this machine, which starts a container for each flow run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import yaml
from commands import TestFailed, eventually, require, say
from flow_checks import LEARNER, PATIENCE, Flows
from kill_checks import LONG
from services_support import Services, end, start

POOL, DEPLOYMENT = "rl-training-docker", "train-flow/in-container"
INSIDE = "/run/secrets"


def check_docker_pool(flows: Flows, user: Services) -> None:
    """A flow run completes in a container of its own; one that is cancelled or killed has its run in the volume.

    Args:
        flows: The services, behind HTTPS.
        user: A shell that knows their addresses by HTTPS.
    """
    stack = flows.stack
    user = replace(user, environment=user.environment | stack.environment)
    volume = f"{stack.project}-docker-pool"
    pool = Flows(stack, user)
    try:
        _deploy(pool, volume)
        with _docker_worker(user):
            _completes(pool)
            _continues(pool)
    except TestFailed as failed:
        raise TestFailed(f"{failed}\n{(user.home / 'docker-worker.log').read_text(errors='replace')[-6000:]}") from None
    finally:
        for container in _containers(pool):
            stack.engine.docker("rm", "--force", container, check=False)
        stack.engine.docker("volume", "rm", "--force", volume, check=False)
    pool.require_nothing_lost()


def _deploy(pool: Flows, volume: str) -> None:
    """Creates the work pool and its deployment as the guide has them."""
    stack, user = pool.stack, pool.user
    template = stack.clone / "docker" / "pools" / "docker.json"
    created = user.prefect("work-pool", "create", POOL, "--type", "docker", "--base-job-template", str(template))
    require(created.returncode == 0, created.stdout + created.stderr)
    environment = {
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_API_SSL_CERT_FILE": f"{INSIDE}/tls_certificate",
        "PREFECT_HOME": "/data/prefect",
        "MLFLOW_TRACKING_URI": user.environment["MLFLOW_TRACKING_URI"],
        "MLFLOW_TRACKING_USERNAME": "owner",
        "MLFLOW_TRACKING_PASSWORD_FILE": f"{INSIDE}/mlflow_password",
        "MLFLOW_TRACKING_SERVER_CERT_PATH": f"{INSIDE}/tls_certificate",
        "RL_TRAINING_HOME": "/data",
    }
    variables = {"image": _image(pool), "volume": volume, "secrets": str(_secrets(pool)), "env": environment}
    entry = {
        "name": DEPLOYMENT.partition("/")[2],
        "entrypoint": "rl_training.flows.train.train_flow",
        "tags": ["rl-training"],
        "parameters": {"config": "ppo/cartpole"},
        "concurrency_limit": {"limit": 1, "collision_strategy": "ENQUEUE"},
        "work_pool": {"name": POOL, "job_variables": variables},
    }
    file = stack.scratch / "docker-pool.yaml"
    file.write_text(yaml.safe_dump({"pull": [], "deployments": [entry]}))
    deployed = user.rl_training("deploy", "--file", str(file))
    require(deployed.returncode == 0, deployed.stdout + deployed.stderr)


def _secrets(pool: Flows) -> Path:
    """Makes the folder that a machine has at /etc/rl-training, for the user of the image alone."""
    folder = pool.stack.scratch / "docker-pool-secrets"
    folder.mkdir()
    for name in ("mlflow_password", "tls_certificate"):
        shutil.copyfile(pool.stack.clone / "docker" / "secrets" / name, folder / name)
        (folder / name).chmod(0o400)
        shutil.chown(folder / name, 10001, 10001)
    folder.chmod(0o700)
    shutil.chown(folder, 10001, 10001)
    return folder


@contextmanager
def _docker_worker(user: Services) -> Iterator[subprocess.Popen[bytes]]:
    process = start(user, "docker-worker", "worker", "start", "--pool", POOL, "--type", "docker")
    try:
        yield process
    finally:
        end(process)


def _completes(pool: Flows) -> None:
    """A container trains, is removed, and shows no password."""
    flow_run = pool.user.begin(DEPLOYMENT, overrides={**LEARNER, "promotion": {"enabled": False}})
    container = _its_container(pool)
    shown = pool.stack.engine.docker("inspect", container)
    (described,) = json.loads(shown)
    password = pool.stack.logins["MLFLOW_TRACKING_PASSWORD"]
    stored = [pool.user.get(path) for path in (f"/flow_runs/{flow_run}", f"/deployments/name/{DEPLOYMENT}")]
    require(password not in shown + json.dumps(stored), "docker inspect shows a password, or Prefect stores it")
    require(described["HostConfig"]["CapDrop"] == ["ALL"], f"rights: {described['HostConfig']['CapDrop']}")
    require(described["Config"]["User"] == "10001:10001", f"user: {described['Config']['User']}")
    require(_ends(pool, flow_run) == "Completed", f"flow run {flow_run} has not completed")
    run_id = pool.note(flow_run)
    tags = pool.registry.get_run(run_id).data.tags
    require(container.startswith(tags["host"]), f"{tags['host']} has trained, and not {container}")
    eventually(lambda: not _containers(pool), PATIENCE, "the container of a completed flow run is removed")


def _continues(pool: Flows) -> None:
    """A run that was cancelled, and whose next container was killed, completes in a third one."""
    flow_run = pool.user.begin(DEPLOYMENT, overrides=LONG)
    eventually(lambda: pool.trains(flow_run), PATIENCE, f"flow run {flow_run} trains")
    say("cancelling it")
    cancelled = pool.user.prefect("flow-run", "cancel", flow_run)
    require(cancelled.returncode == 0, cancelled.stdout + cancelled.stderr)
    pool.wait(flow_run, "Cancelled")
    eventually(lambda: not _containers(pool), PATIENCE, "the container of a cancelled flow run is removed")
    run = pool.registry.get_run(pool.mlflow_run(flow_run))
    require(run.info.status == "KILLED", f"MLflow says of the cancelled run: {run.info.status}")

    _retry(pool, flow_run)
    container = _its_container(pool)
    eventually(lambda: _attempts(pool, flow_run) == 2, PATIENCE, "the second attempt trains")
    say("killing its container")
    pool.stack.engine.docker("kill", container)
    pool.wait(flow_run, "Crashed")

    _retry(pool, flow_run)
    require(_ends(pool, flow_run) == "Completed", f"flow run {flow_run} has not completed")
    pool.note(flow_run)
    require(_attempts(pool, flow_run) == 3, f"attempts: {pool.registry.get_run(run.info.run_id).data.tags}")


def _retry(pool: Flows, flow_run: str) -> None:
    done = pool.user.prefect("flow-run", "retry", flow_run)
    require(done.returncode == 0, done.stdout + done.stderr)


def _ends(pool: Flows, flow_run: str) -> str:
    return pool.wait(flow_run, "Completed", "Failed", "Crashed", "Cancelled")


def _attempts(pool: Flows, flow_run: str) -> int:
    tags = pool.registry.get_run(pool.mlflow_run(flow_run)).data.tags
    return len(json.loads(tags.get("attempts", "[]")))


def _its_container(pool: Flows) -> str:
    """The id of the one container that runs a flow run, once it is there."""
    (container,) = eventually(lambda: _containers(pool), PATIENCE, "a container starts")
    return str(container)


def _containers(pool: Flows) -> list[str]:
    filters = ["--filter", f"label=io.prefect.work-pool-name={POOL}", "--filter", f"ancestor={_image(pool)}"]
    return pool.stack.engine.docker("ps", "--all", "--quiet", "--no-trunc", *filters).split()


def _image(pool: Flows) -> str:
    (image,) = (image for image in pool.stack.images() if "-worker:" in image)
    return image
