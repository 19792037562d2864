"""Queues: a worker takes the flow runs of its own, and the doctor names a queue that no worker takes from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings
from services_support import BIN, REPOSITORY, Services, end, eventually, start_program

from rl_training.services.doctor import diagnose

pytestmark = pytest.mark.services

POOL = "two-machines"
PATIENCE = 600.0


@pytest.fixture(scope="module")
def deployed(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Two deployments, each of which names a queue of a pool."""
    file = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    file["deployments"] = [entry for entry in file["deployments"] if entry["name"] in ("dqn-cartpole", "ppo-pendulum")]
    for entry, queue in zip(file["deployments"], ("gpu", "cpu"), strict=True):
        entry["work_pool"] = {**entry["work_pool"], "name": POOL, "work_queue_name": queue}
    path = tmp_path_factory.mktemp("queues") / "prefect.yaml"
    path.write_text(yaml.safe_dump(file))
    done = services.rl_training("deploy", "--file", str(path))
    assert done.returncode == 0, done.stderr
    assert "train-flow/dqn-cartpole, queue gpu" in done.stdout
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_HOME", "RL_TRAINING_HOME", "HOME"):
            patch.setenv(name, services.environment[name])
        with temporary_settings({PREFECT_API_URL: services.api_url}):  # Prefect may have read its settings before
            yield services


def problems() -> list[str]:
    return [finding.line() for finding in diagnose().findings if POOL in finding.text and finding.status == "problem"]


def test_a_deployment_runs_at_a_worker_of_its_queue(deployed: Services) -> None:
    tiny = {"total_timesteps": 64, "evaluation": {"episodes": 1, "final_episodes": 1}, "promotion": {"enabled": False}}
    run = deployed.begin(
        "train-flow/ppo-pendulum", overrides={**tiny, "num_envs": 1, "rollout_steps": 64, "batch_size": 64}
    )
    gpu = start_program(deployed, "gpu-worker", BIN / "rl-training", "worker", "--pool", POOL, "--queue", "gpu")
    cpu = None
    try:
        wanted = [
            f"problem workers: no worker of {POOL} takes flow runs of queue cpu, as 1 deployments need; "
            f"`rl-training worker --pool {POOL} --queue cpu` does"
        ]
        assert eventually(lambda: problems() == wanted, PATIENCE), problems()
        assert deployed.state(run) in ("Scheduled", "Late")
        cpu = start_program(deployed, "cpu-worker", BIN / "rl-training", "worker", "--pool", POOL, "--queue", "cpu")
        assert eventually(lambda: deployed.state(run) == "Completed", PATIENCE), deployed.state(run)
        assert eventually(lambda: problems() == [], PATIENCE), problems()
    finally:
        for process in filter(None, (gpu, cpu)):
            end(process)


def test_a_queue_that_does_not_exist_is_named(deployed: Services) -> None:
    done = deployed.rl_training("worker", "--pool", POOL, "--queue", "gpus")
    assert done.returncode == 2
    assert "has no queue 'gpus', only cpu, default, gpu; a deployment that names it" in done.stderr
