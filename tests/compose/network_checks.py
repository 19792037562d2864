"""Which pages answer, and who can't reach the database."""

from __future__ import annotations

import json
import socket
import urllib.request

from commands import require
from stack import Stack

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 5432), 5)"


def check_pages(stack: Stack) -> None:
    """Both servers' pages and APIs answer on this machine."""
    for name, address in (("MLflow", stack.mlflow_uri), ("Prefect", stack.prefect_uri)):
        page = _get(address)
        require("<html" in page.lower(), f"{name} at {address} shows no page: {page[:200]}")
    body = json.dumps({"max_results": 1}).encode()
    request = urllib.request.Request(
        f"{stack.mlflow_uri}/api/2.0/mlflow/experiments/search", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        require("experiments" in json.loads(answer.read()), "MLflow's API has no experiments")
    require(json.loads(_get(f"{stack.prefect_uri}/api/health")) is True, "Prefect's API is not well")
    settings = json.loads(_get(f"{stack.prefect_uri}/ui-settings"))
    require(settings["api_url"] == f"{stack.prefect_uri}/api", f"Prefect's page asks {settings['api_url']}")


def check_database(stack: Stack) -> None:
    """Nothing but the servers that need it reaches the database, by its name or by its container's address."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
    (address,) = stack.engine.docker("inspect", "--format", form, stack.container("postgres")).split()
    stack.inside("mlflow", "python", "-c", CONNECT, address)
    stack.inside("prefect", "python", "-c", CONNECT, "postgres")
    image = next(image for image in stack.images() if "-worker:" in image)
    for who, command in (
        ("the worker", ["compose", "exec", "-T", "worker"]),
        ("a container of another network", ["run", "--rm", image]),
    ):
        for name in (address, "postgres"):
            said = _tried(stack, [*command, "python", "-c", f"{CONNECT}; print('reached')", name])
            require("reached" not in said, f"{who} reaches the database at {name}")
    try:
        socket.create_connection((address, 5432), 5).close()
    except OSError:
        return
    require(False, f"this machine reaches the database at its container's address {address}")


def _tried(stack: Stack, command: list[str]) -> str:
    if command[0] == "compose":
        return stack.compose(*command[1:], check=False)
    return stack.engine.docker(*command, check=False)


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=120) as answer:
        return str(answer.read().decode())
