"""Describes a run for MLflow with parameters, tags and a dataset, from its settings and metadata."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from rl_training.config.settings import TrainConfig
from rl_training.errors import TrackingError
from rl_training.run_layout import METADATA
from rl_training.runs.metadata import Metadata
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.security.secrets import redact
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import flatten

NOTE = "mlflow.note.content"
"""MLflow's tag with the description on a run's page."""

DEPLOYMENT = "prefect.deployment"
"""Tag of a run that a deployment of a flow started: `FLOW/DEPLOYMENT`."""


def describe_run(run_dir: Path, config: TrainConfig, tags: Mapping[str, str], from_step: int = 0) -> dict[str, Any]:
    """Returns the content of `tracking.json`: everything that the shipper needs, without secrets.

    Args:
        run_dir: The run's directory, with its `metadata.json`.
        config: The resolved settings.
        tags: Tags of the caller. If `DEPLOYMENT` is among them, the run is described as started by the deployment, not
            by the command.
        from_step: The step at which this process begins to train.

    Raises:
        TrackingError: `run_dir` is not the directory of a run.
    """
    metadata = json_files.read_json(run_dir / METADATA, Metadata)
    if metadata is None:
        raise TrackingError(f"{run_dir} is not the directory of a run: it has no {METADATA}")
    settings = serialize_train_config(config)
    return {
        "run_uid": metadata["run_uid"],
        "experiment": config.experiment,
        "run_name": settings["run_name"] or f"{config.env_id}-{config.algo}-seed{config.seed}",
        "total_timesteps": config.total_timesteps,
        "from_step": from_step,
        "started": datetime.fromisoformat(metadata["started"]).timestamp(),
        "process": {"host": socket.gethostname(), "pid": os.getpid(), "created": psutil.Process().create_time()},
        "params": flatten(settings),
        "tags": {**_make_tags(run_dir, config, metadata, tags.get(DEPLOYMENT)), **settings["tags"], **redact(tags)},
        "dataset": _describe_dataset(settings),
        "forked_from": metadata["forked_from"],
    }


def is_trainer_alive(description: Mapping[str, Any]) -> bool:
    """Returns whether the run's training process exists on this machine."""
    process = description["process"]
    if process["host"] != socket.gethostname():
        return False
    try:
        created = psutil.Process(process["pid"]).create_time()
    except psutil.NoSuchProcess:
        return False
    return bool(abs(created - process["created"]) < 1.0)


def _make_tags(
    run_dir: Path, config: TrainConfig, metadata: Mapping[str, Any], deployment: str | None
) -> dict[str, str]:
    tags = {
        "run_uid": metadata["run_uid"],
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": str(config.seed),
        "host": socket.gethostname(),
        "run_dir": str(run_dir),
        "mlflow.user": _get_user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": _name_source(deployment, metadata["command"]),
        NOTE: _write_note(run_dir, config, deployment or shlex.join(metadata["command"])),
    }
    tags |= {f"version.{name}": version for name, version in metadata["versions"].items()}
    if (git := metadata["git"]) is not None:
        commit = git["commit"]
        tags |= {"git_commit": commit, "git_dirty": str(git["dirty"]).lower(), "mlflow.source.git.commit": commit}
    return tags


def _get_user() -> str:
    """Returns the name of the user, or the user id if the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _name_source(deployment: str | None, command: Sequence[str]) -> str:
    """Returns the deployment or command that started the run, without options and paths.

    It has no slash, because MLflow only shows the part after the last slash.
    """
    if deployment is not None:
        return deployment.replace("/", " ")
    name, *words = command
    return " ".join([Path(name).name, *takewhile(lambda word: word[:1] != "-" and "/" not in word, words)])


def _write_note(run_dir: Path, config: TrainConfig, started_by: str) -> str:
    """Returns the description on the run's page in Markdown; its first paragraph is the same for every attempt."""
    return (
        f"**{config.algo}** on **{config.env_id}**, seed {config.seed}, {config.total_timesteps:,} steps.\n\n"
        f"Started by `{started_by}`, in the run directory `{run_dir}`.\n\n"
        f"The settings are in `config.yaml` among the artifacts, and the checkpoints under `checkpoints/`. "
        f"Continue a stopped run with `rl-training resume {run_dir}`."
    )


def add_pictures(note: str, run_id: str, pictures: Iterable[str]) -> str:
    """Returns a run's description with pictures after its first paragraph.

    Args:
        note: The description, from `describe_run`.
        run_id: The run's id in MLflow, which is part of a picture's address.
        pictures: Names of the pictures among the artifacts.
    """
    first, *rest = note.split("\n\n", 1)
    shown = (f"![{name}](get-artifact?path={name}&run_uuid={run_id})" for name in pictures)
    return "\n\n".join([first, *shown, *rest])


def _describe_dataset(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment as an MLflow dataset; runs in the same environment have the same digest."""
    identity = {key: settings[key] for key in ("env_id", "env_kwargs", "wrappers", "max_episode_steps")}
    source = json.dumps(identity, sort_keys=True)
    return {
        "name": settings["env_id"],
        "digest": hashlib.sha256(source.encode()).hexdigest()[:8],
        "source_type": "gymnasium",
        "source": source,
    }
