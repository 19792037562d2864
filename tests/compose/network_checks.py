"""Which pages answer, and which services cannot reach the database."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import urllib.error
import urllib.request

from commands import require, run
from stack import Stack

ASKS_POSTGRES = """
import socket, sys
with socket.create_connection((sys.argv[1], 5432), 10) as connection:
    connection.settimeout(10)
    connection.sendall(bytes([0, 0, 0, 8, 4, 210, 22, 47]))
    print("reached" if connection.recv(1) in (b"S", b"N") else "something else")
"""
"""Asks whether PostgreSQL takes TLS, which it answers before any login: a gateway may accept every connection."""


def check_pages(stack: Stack) -> None:
    """Checks that the pages and APIs of both servers answer on this machine."""
    login = mlflow_authorization(stack)
    for name, address, headers in (("MLflow", stack.mlflow_uri, login), ("Prefect", stack.prefect_uri, {})):
        page = ask(address, headers=headers)
        require("<html" in page.lower(), f"{name} at {address} shows no page: {page[:200]}")
    search = f"{stack.mlflow_uri}/api/2.0/mlflow/experiments/search"
    require("experiments" in json.loads(ask(search, b'{"max_results": 1}', login)), "MLflow's API has no experiments")
    require(json.loads(ask(f"{stack.prefect_uri}/api/health")) is True, "Prefect's API is not well")
    for locked in (search, f"{stack.prefect_uri}/api/flows/count"):
        require(ask(locked, b"{}") == "401", f"{locked} answers without a password")
    settings = json.loads(ask(f"{stack.prefect_uri}/ui-settings"))
    require(settings["api_url"] == f"{stack.prefect_uri}/api", f"Prefect's page asks {settings['api_url']}")


def check_database(stack: Stack) -> None:
    """Nothing but the servers that need it reaches the database, by its name or by its container's address."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
    (address,) = stack.engine.docker("inspect", "--format", form, stack.container("postgres")).split()
    image = next(image for image in stack.images() if "-worker:" in image)
    ask = ["python", "-c", ASKS_POSTGRES]
    for name in (address, "postgres"):
        answers = {
            "mlflow": stack.inside("mlflow", *ask, name, check=False),
            "prefect": stack.inside("prefect", *ask, name, check=False),
            "the worker": stack.inside("worker", *ask, name, check=False),
            "a container of another network": stack.engine.docker("run", "--rm", image, *ask, name, check=False),
            "this machine": run([sys.executable, *ask[1:], name], check=False),
        }
        reached = [who for who, answer in answers.items() if "reached" in answer]
        require(reached == ["mlflow", "prefect"], f"the database is reached at {name} by {reached}")


def mlflow_authorization(stack: Stack) -> dict[str, str]:
    """The header that logs in at MLflow."""
    login = f"owner:{stack.logins['MLFLOW_TRACKING_PASSWORD']}"
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def ask(
    address: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> str:
    """Returns what an address answers, or the status in place of a refusal."""
    request = urllib.request.Request(address, body, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=120, context=context) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.code)
