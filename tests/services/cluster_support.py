"""Sweeps on clusters whose nodes have homes of their own, and what is compared of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from services_support import BIN, COMMAND_SECONDS, REPOSITORY, eventually

RATES = [0.001, 0.003, 0.01, 0.03]
BASE: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "case_envs:Prints-v0",
    "env_kwargs": {"seconds": 0.004},
    "experiment": "cluster",
    "total_timesteps": 3_000,
    "num_envs": 2,
    "rollout_steps": 50,
    "batch_size": 50,
    "evaluation": {"every": 1_000, "episodes": 2, "final_episodes": 5, "video": False},
    "checkpoint": {"every": 200},
    "logging": {"every": 100},
    "promotion": {"enabled": False},
}
"""A run of twelve seconds, with a checkpoint each second."""


def make_sweep(engine: str | dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a sweep with a trial for each learning rate, all in one round."""
    return {
        "name": "cluster",
        "config": BASE,
        "space": {"learning_rate": {"choice": RATES}},
        "method": "grid",
        "trials": len(RATES),
        "parallel": len(RATES),
        "confirmation": {"points": 0},
        "engine": engine,
    }


def make_environment(services: Mapping[str, str], home: Path, tracking_uri: str, **others: str) -> dict[str, str]:
    """Returns the environment of a machine: a home of its own, and the servers that all machines share."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        **services,
        "RL_TRAINING_HOME": str(home),
        "MLFLOW_TRACKING_URI": tracking_uri,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]),
        **others,
    }


def start_sweep(settings: dict[str, Any], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts `rl-training sweep`, as a user does."""
    file = Path(environment["RL_TRAINING_HOME"]) / "cluster.yaml"
    file.write_text(json.dumps(settings))
    with file.with_suffix(".log").open("w") as log:
        return subprocess.Popen(
            [str(BIN / "rl-training"), "sweep", str(file), "--json"],
            env=dict(environment),
            cwd=file.parent,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def finish_sweep(sweep: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Waits for the end of a sweep, and returns its table: the point, score, steps and policy of each trial."""
    said, _ = sweep.communicate(timeout=COMMAND_SECONDS)
    assert sweep.returncode == 0, said
    result = json.loads(said.splitlines()[-1])
    assert result["finished"]
    return [
        {
            "trial": trial["number"],
            "params": trial["params"],
            "state": trial["state"],
            "score": trial["score"],
            "runs": [(run["seed"], run["num_timesteps"], run["policy_sha256"]) for run in trial["runs"]],
        }
        for trial in result["trials"]
    ]


def kill_session(leader: int) -> None:
    """Kills every process of a session with SIGKILL at once; its trials, which have sessions of their own, are left."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader:
                process.kill()


def list_checkpoints(home: Path) -> list[Path]:
    """Returns the checkpoints, later than the first, of the trials that a machine has trained."""
    return [path for path in home.glob("runs/sweep-*/checkpoints/step_*") if int(path.name.removeprefix("step_")) > 0]


def list_runs(client: Any) -> list[Any]:
    """Returns the MLflow runs of the trials."""
    experiment = client.get_experiment_by_name("cluster")
    if experiment is None:
        return []
    runs = client.search_runs([experiment.experiment_id])
    return [run for run in runs if "rl_training.trial" in run.data.tags]


def wait_for_shipped_checkpoint(client: Any, homes: Sequence[Path]) -> tuple[Path, psutil.Process]:
    """Waits until a trial on one of the machines has a checkpoint in MLflow; returns its directory and its process."""

    def find() -> tuple[Path, psutil.Process] | None:
        by_directory = {run.data.tags.get("run_dir"): run for run in list_runs(client)}
        for run_dir in dict.fromkeys(path.parents[1] for home in homes for path in list_checkpoints(home)):
            run = by_directory.get(str(run_dir))
            if run is None or not is_shipped(client, run.info.run_id):
                continue
            process = find_process(run_dir)
            if process is not None:
                return run_dir, process
        return None

    found = eventually(find, 240)
    assert found
    return found  # type: ignore[no-any-return]


def is_shipped(client: Any, run_id: str) -> bool:
    """Returns whether a checkpoint after the first is complete in MLflow; its manifest is sent last."""
    steps = [file.path for file in client.list_artifacts(run_id, "checkpoints")]
    return any(
        any(file.path.endswith("manifest.json") for file in client.list_artifacts(run_id, step))
        for step in steps
        if step.rpartition("step_")[2].strip("0")
    )


def find_process(run_dir: Path) -> psutil.Process | None:
    """Returns the process that trains a run, which its lock names."""
    holder = next(run_dir.glob("*.holder"), None)
    with suppress(psutil.Error, ValueError, OSError):
        if holder is not None:
            return psutil.Process(int(holder.read_text().split()[1]))
    return None


def require_each_once(client: Any, moved: Path, ended: float) -> None:
    """Checks that every trial is one finished run, and that the one whose node died resumed after that elsewhere.

    Args:
        client: MLflow's client.
        moved: The directory of that trial on the node that died.
        ended: The time at which its process there was gone.
    """
    runs = list_runs(client)
    assert sorted(run.data.tags["rl_training.trial"] for run in runs) == [f"t{i:04d}-s0" for i in range(len(RATES))]
    assert {run.info.status for run in runs} == {"FINISHED"}
    key = moved.name.split("-", 2)[2]
    (run,) = (run for run in runs if run.data.tags["rl_training.trial"] == key)
    attempts = json.loads(run.data.tags["attempts"])
    assert [attempt["from_step"] > 0 for attempt in attempts] == [False, True]
    assert attempts[1]["created"] > ended - 1.0  # the two never trained at the same time
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert sorted(set(steps)) == [1_000, 2_000, 3_000]
