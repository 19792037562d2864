"""A worker that shares nothing with the services but two addresses by HTTPS, the logins and a certificate."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

from commands import eventually, require, run, say
from flow_checks import LEARNER, PATIENCE, Flows
from kill_checks import LONG
from network_checks import ask, mlflow_authorization
from services_support import Services
from stack import Stack

CERTIFICATE_VARIABLES = ("PREFECT_API_SSL_CERT_FILE", "MLFLOW_TRACKING_SERVER_CERT_PATH")


def check_remote(flows: Flows) -> Services:
    """HTTPS with a certificate of the test's own, and a worker in a container of another network.

    Returns:
        The shell of a user who knows the addresses by HTTPS.
    """
    stack = flows.stack
    user = start_proxy(stack)
    check_https(stack, user)
    stack.compose("stop", "worker")
    worker = f"{stack.project}-remote"
    stack.engine.docker("network", "create", worker)
    try:
        _start_remote_worker(stack, worker, user)
        remote = Flows(stack, user)
        run_id = remote.train("train-flow/default", overrides={**LEARNER, "promotion": {"enabled": False}})
        require(flows.registry.get_run(run_id).data.tags["host"] == worker, "another worker has trained")
        _move(remote, worker)
        remote.require_nothing_lost()
    finally:
        stack.engine.docker("rm", "--force", worker, check=False)
        stack.engine.docker("network", "rm", worker, check=False)
    return user


def start_proxy(stack: Stack) -> Services:
    """Starts the services with docker-compose.tls.yml; returns the shell of a user who knows the addresses by HTTPS."""
    host = stack.engine.gateway
    run(["docker/make_certificate.sh", host], cwd=stack.clone)
    files = {"COMPOSE_FILE": "docker-compose.yml:docker-compose.tls.yml", "TLS_HOST": host, "TLS_ADDRESS": host}
    stack.environment |= files
    stack.up()
    client, certificate = stack.client(), str(stack.clone / "docker" / "secrets" / "tls_certificate")
    api_url = f"https://{host}:{stack.ports['PREFECT_TLS_PORT']}/api"
    addresses = {"PREFECT_API_URL": api_url, "MLFLOW_TRACKING_URI": f"https://{host}:{stack.ports['MLFLOW_TLS_PORT']}"}
    own = addresses | dict.fromkeys(CERTIFICATE_VARIABLES, certificate)
    return replace(client, api_url=api_url, environment=client.environment | own)


def check_https(stack: Stack, user: Services) -> None:
    """Both servers are there by HTTPS, whose certificate clients verify; pages of other sites are refused."""
    eventually(lambda: user.rl_training("doctor").returncode == 0, PATIENCE, "doctor finds no fault")
    for variable, server in zip(CERTIFICATE_VARIABLES, ("Prefect", "mlflow"), strict=True):
        stranger = {name: value for name, value in user.environment.items() if name != variable}
        said = replace(user, environment=stranger).rl_training("doctor").stdout
        require(f"set {variable}" in said, f"without {variable}, doctor says of {server}: {said}")
    context = ssl.create_default_context(cafile=user.environment[CERTIFICATE_VARIABLES[0]])
    mlflow = user.environment["MLFLOW_TRACKING_URI"]
    search = f"{mlflow}/api/2.0/mlflow/experiments/search"
    for origin, refused in ((mlflow, False), ("https://elsewhere.example", True)):
        headers = {**mlflow_authorization(stack), "Origin": origin}
        said = ask(search, b'{"max_results": 1}', headers, context)
        require((said == "403") == refused, f"a page of {origin} gets from MLflow: {said[:300]}")
    settings = ask(f"{user.api_url.removesuffix('/api')}/ui-settings", context=context)
    require(user.api_url in settings, f"Prefect's page asks {settings}, and not {user.api_url}")


def _start_remote_worker(stack: Stack, name: str, user: Services) -> None:
    """Starts the worker's image in a network of its own, without a volume, and copies the certificate into it."""
    inside = "/home/app/certificate.pem"
    wanted = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", *stack.logins)
    settings = {key: user.environment[key] for key in wanted} | dict.fromkeys(CERTIFICATE_VARIABLES, inside)
    settings |= {"RL_TRAINING_HOME": "/data", "PREFECT_HOME": "/data/prefect"}
    file = Path(stack.scratch, "remote.env")
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    image = next(image for image in stack.images() if "-worker:" in image)
    options = ["--name", name, "--hostname", name, "--network", name, "--init", "--env-file", file]
    stack.engine.docker("create", *options, image)
    stack.engine.docker("cp", user.environment[CERTIFICATE_VARIABLES[0]], f"{name}:{inside}")
    stack.engine.docker("start", name)


def _move(remote: Flows, worker: str) -> None:
    """A run whose machine is lost continues at the worker of the services, from the checkpoint in MLflow."""
    flow_run = remote.user.begin("train-flow/default", overrides=LONG)
    eventually(lambda: remote.trains(flow_run), PATIENCE, f"flow run {flow_run} trains")
    say("killing the remote worker")
    remote.stack.engine.docker("kill", worker)
    remote.wait(flow_run, "Crashed")
    remote.stack.start("worker")
    done = remote.user.prefect("flow-run", "retry", flow_run)
    require(done.returncode == 0, done.stdout + done.stderr)
    state = remote.wait(flow_run, "Completed", "Failed", "Crashed", "Cancelled")
    require(state == "Completed", f"the run that lost its machine ended {state}")
    attempts = remote.registry.get_run(remote.note(flow_run)).data.tags["attempts"]
    require('"from_step": 0' in attempts and attempts.count("from_step") == 2, f"attempts: {attempts}")
