"""`rl-training deploy --notify`: a webhook is told what happened to flow runs, candidates and champions."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from services_support import BIN, REPOSITORY, TINY, Services, eventually

from rl_training.services.notifications import PREFIX

pytestmark = pytest.mark.services

PATIENCE = 600.0
GATE = {"model": "told", "floor": 0.0, "episodes": 20}
MAKE_BLOCKS = """
import sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
message = {"subject": "{{subject}}", "body": "{{body}}"}
CustomWebhookNotificationBlock(name="told", url=sys.argv[1], json_data=message).save("told", overwrite=True)
Secret(value="no webhook").save("told", overwrite=True)
"""


class Webhook(BaseHTTPRequestHandler):
    """Keeps the messages that it gets."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.messages.append((body["subject"], body["body"]))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def messages() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a webhook, and the messages that it got."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        server.messages = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", server.messages  # type: ignore[attr-defined]
        server.shutdown()


@pytest.fixture(scope="module")
def told(
    services: Services, messages: tuple[str, list[tuple[str, str]]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, str]]]:
    """The messages, of a server that was told to send them."""
    address, got = messages
    made = subprocess.run(
        [BIN / "python", "-c", MAKE_BLOCKS, address],
        env=services.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    file = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    kept = ("rl_training.flows.train.train_flow", "rl_training.flows.retrain.retrain_flow")
    file["deployments"] = [
        entry for entry in file["deployments"] if entry["name"] == "default" and entry["entrypoint"] in kept
    ]
    path = tmp_path_factory.mktemp("told") / "prefect.yaml"
    path.write_text(yaml.safe_dump(file))
    deploy = ("deploy", "--file", str(path), "--notify", "custom-webhook/told", "--json")
    done = services.rl_training(*deploy)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)["automations"]
    assert [name for name in outcomes if name.startswith(PREFIX) and outcomes[name] == "created"]
    again = json.loads(services.rl_training(*deploy).stdout)
    assert set(again["automations"].values()) == {"unchanged"}
    yield got
    for automation in services.post("/automations/filter", {}):
        if automation["name"].startswith(PREFIX):
            services.post(f"/automations/{automation['id']}", {}, "DELETE")


def message_about(told: list[tuple[str, str]], subject: str) -> str:
    """Waits for a message with this in its subject; returns its body."""
    found = eventually(lambda: [body for told_subject, body in told if subject in told_subject], PATIENCE)
    assert found, told
    return str(found[0])


def make_flow_run(services: Services, own_name: str, **state: Any) -> None:
    """Creates a flow run of a deployment, and gives it this state at once."""
    deployment = services.get("/deployments/name/train-flow/default")["id"]
    later = {
        "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": "2099-01-01T00:00:00Z"}},
        "name": own_name,
    }
    run = services.post(f"/deployments/{deployment}/create_flow_run", later)["id"]
    services.post(f"/flow_runs/{run}/set_state", {"state": state, "force": True})


@pytest.mark.parametrize(("state", "name"), [("FAILED", "Failed"), ("CRASHED", "Crashed")])
def test_a_flow_run_that_fails_or_crashes(
    services: Services, told: list[tuple[str, str]], state: str, name: str
) -> None:
    make_flow_run(services, f"unlucky-{state.lower()}", type=state, name=name, message="the simulator is away")
    body = message_about(told, f"train-flow, flow run unlucky-{state.lower()}: {name}")
    assert "the simulator is away" in body
    assert f"\n{services.api_url.removesuffix('/api')}/runs/flow-run/" in body


def test_one_that_is_cancelled_is_none(services: Services, told: list[tuple[str, str]]) -> None:
    make_flow_run(services, "not-wanted", type="CANCELLED", name="Cancelled")
    make_flow_run(services, "after-it", type="FAILED", name="Failed")
    message_about(told, "after-it")
    assert not [subject for subject, _ in told if "not-wanted" in subject]


def test_a_promotion_a_rejection_and_a_skipped_retraining(services: Services, told: list[tuple[str, str]]) -> None:
    done = services.run("train-flow/default", overrides={**TINY, "promotion": GATE})
    assert done["state"]["name"] == "Completed", done["state"]
    body = message_about(told, "told, version 1: champion")
    assert "floor" in body
    assert body.endswith("champion yet\n")  # no MLflow server shows the version, so there is no link
    unreachable = {**TINY, "seed": 2, "promotion": {**GATE, "floor": 10_000.0}}
    assert services.run("train-flow/default", overrides=unreachable)["state"]["name"] == "Completed"
    assert "floor" in message_about(told, "told, version 2: REJECT")
    fresh = {"config": "ppo/cartpole", "overrides": {**TINY, "promotion": GATE}, "min_hours": 1_000}
    assert services.run("retrain-flow/default", **fresh)["state"]["name"] == "Skipped"
    assert "1000" in message_about(told, ": Skipped").replace(",", "")


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("custom-webhook/nobody", "the Prefect server has no block custom-webhook/nobody"),
        ("secret/told", "blocks of type secret can't notify anybody"),
        ("told", "got 'told', expected the type and name of a block"),
    ],
)
def test_a_block_that_can_not_be_used(services: Services, told: list[tuple[str, str]], block: str, words: str) -> None:
    done = services.rl_training("deploy", "--notify", block)
    assert done.returncode == 2
    assert words in done.stderr
