"""The flows, run through their deployments as a user runs them."""

from __future__ import annotations

import json
import re
from typing import Any

from commands import eventually, require, say
from services_support import Services
from stack import Stack

from rl_training.tracking.mlflow_store import connect

EXPERIMENT, MODEL = "compose", "compose"
PATIENCE = 900.0
LEARNER: dict[str, Any] = {
    "total_timesteps": 4_096,
    "evaluation": {"every": 2_048, "episodes": 3, "final_episodes": 5, "video": False},
    "checkpoint": {"every": 1_024},
    "promotion": {"model": MODEL, "floor": 0.0, "episodes": 20},
    "experiment": EXPERIMENT,
}
"""Laid over ppo/cartpole: some seconds of training, and a gate that lets anything better pass."""
PONG: dict[str, Any] = {
    "total_timesteps": 64,
    "num_envs": 1,
    "rollout_steps": 32,
    "batch_size": 32,
    "epochs": 1,
    "network": {"hidden": [32]},
    "env_kwargs": {"max_num_frames_per_episode": 400},
    "evaluation": {"every": 64, "episodes": 1, "final_episodes": 2, "video": False},
    "promotion": {"enabled": False},
    "experiment": EXPERIMENT,
}
"""Laid over ppo/pong: enough to import, reset and step the emulator."""


class Flows:
    """The deployments, and what has come of them in MLflow.

    Args:
        stack: The services.
        user: The shell that starts flow runs; by default one of this machine.
    """

    def __init__(self, stack: Stack, user: Services | None = None) -> None:
        self.stack, self.user, self.registry = stack, user or stack.client(), connect(stack.mlflow_uri)
        self.completed: dict[str, str] = {}
        """The MLflow run of each flow run that has completed."""

    def run(self, deployment: str, **parameters: Any) -> str:
        """Runs a deployment to its end; returns the flow run's id."""
        say(f"prefect deployment run {deployment}")
        flow_run = self.user.run(deployment, **parameters)
        self._require_completed(flow_run["id"], deployment)
        return str(flow_run["id"])

    def train(self, deployment: str, **parameters: Any) -> str:
        """Runs a deployment that trains; returns the id of its run in MLflow."""
        return self.note(self.run(deployment, **parameters))

    def note(self, flow_run: str) -> str:
        """Remembers a completed flow run's run in MLflow, and returns its id."""
        self.completed[flow_run] = self.mlflow_run(flow_run)
        return self.completed[flow_run]

    def mlflow_run(self, flow_run: str) -> str:
        """The id of a flow run's run in MLflow; empty if there is none yet."""
        experiment = self.registry.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return ""
        found = self.registry.search_runs([experiment.experiment_id], f"tags.`prefect.flow_run_id` = '{flow_run}'")
        return str(found[0].info.run_id) if found else ""

    def trains(self, flow_run: str) -> bool:
        """Whether a flow run has a checkpoint in MLflow."""
        run_id = self.mlflow_run(flow_run)
        return bool(run_id and self.registry.list_artifacts(run_id, "checkpoints"))

    def wait(self, flow_run: str, *states: str) -> str:
        """Waits until a flow run is in one of these states; returns which."""
        eventually(lambda: self.user.state(flow_run) in states, PATIENCE, f"flow run {flow_run} is {states}")
        return self.user.state(flow_run)

    def require_nothing_lost(self) -> None:
        """Every run that has completed is there in MLflow with its policy and its points, and in Prefect."""
        for flow_run, run_id in self.completed.items():
            require(self.user.state(flow_run) == "Completed", f"Prefect has lost flow run {flow_run}")
            run = self.registry.get_run(run_id)
            require(run.info.status == "FINISHED", f"MLflow says of run {run_id}: {run.info.status}")
            history = self.registry.get_metric_history(run_id, "eval/return_mean")
            require(history, f"MLflow has lost the points of run {run_id}")
            names = [file.path for file in self.registry.list_artifacts(run_id, "checkpoints")]
            require(names, f"MLflow has lost the checkpoints of run {run_id}")

    def artifacts(self) -> list[dict[str, Any]]:
        """Every artifact that Prefect has: links, tables, reports."""
        found: list[dict[str, Any]] = self.user.post("/artifacts/filter", {"limit": 200})
        return found

    def _require_completed(self, flow_run: str, what: str) -> None:
        state = self.user.get(f"/flow_runs/{flow_run}")["state"]
        if state["name"] != "Completed":
            log = self.stack.compose("logs", "--no-color", "--tail", "80", "worker", check=False)
            require(False, f"{what} ended {state['name']}: {state['message']}\n{log}")


def check_flows(flows: Flows) -> None:
    """Train, resume, retrain, promote, evaluate; and a deployment that needs Atari."""
    run_id = flows.train("train-flow/default", overrides=LEARNER)
    champion = flows.registry.get_model_version_by_alias(MODEL, "champion")
    require(champion.run_id == run_id, "the first policy did not become champion")
    longer = {"total_timesteps": 6_144, "promotion": {"enabled": False}}
    resumed = flows.train("resume-flow/default", source=run_id, overrides=longer)
    require(resumed != run_id, "a longer run is a fork, with a run of its own")
    flows.train("retrain-flow/default", config="ppo/cartpole", overrides=LEARNER)
    flows.run("promote-flow/default", candidate=resumed, overrides={"promotion": {"enabled": True}})
    flows.run("evaluate-flow/default", source=f"models:/{MODEL}@champion", episodes=20)
    flows.train("train-flow/ppo-pong", overrides=PONG)
    flows.require_nothing_lost()


def check_links(flows: Flows) -> None:
    """Checks that a worker's links lead to hosts that a browser of this machine can open."""
    logs = flows.stack.compose("logs", "--no-color", "worker", "bootstrap")
    shown = logs + json.dumps(flows.artifacts())
    inner = re.findall(r"http://(?:mlflow|prefect):\d+/(?!api)\S*", shown)
    require(not inner, f"links to hosts that a browser can't open: {inner[:10]}")
    require(f"{flows.stack.mlflow_uri}/#/" in shown, "no link to MLflow's page")
    require(f"{flows.stack.prefect_uri}/runs" in shown, "no link to Prefect's page")


def check_commit(flows: Flows) -> None:
    """Checks that runs and images name their commit."""
    stack = flows.stack
    label = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
    for image in stack.images():
        said = stack.engine.docker("image", "inspect", "--format", label, image).strip()
        require(said == stack.commit, f"{image} says commit {said!r}, and was built from {stack.commit}")
    require(len(stack.images()) == 4, f"four images, and not {stack.images()}")
    commit, _, dirty = stack.commit.partition("-")
    for run_id in flows.completed.values():
        tags = flows.registry.get_run(run_id).data.tags
        require(
            (tags.get("git_commit"), tags.get("git_dirty")) == (commit, "true" if dirty else "false"),
            f"run {run_id} says commit {tags.get('git_commit')}, dirty {tags.get('git_dirty')}",
        )
