"""Describes a run for MLflow with parameters, tags and a dataset, from its settings and metadata."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from rl_training.config.settings import TrainConfig
from rl_training.errors import TrackingError
from rl_training.run_layout import METADATA
from rl_training.runs.metadata import Metadata
from rl_training.runtime.run_utils import redact_command, serialize_train_config
from rl_training.security.secrets import redact, redact_text
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import DEPLOYMENT, FLOW, KIND, RETRAINED_FROM, VERSION, flatten

WARNINGS = "validation.warnings"
"""Tag: the warnings of validation, a line for each; `none` if there are none."""

BEGINNING = (KIND, "mlflow.source.type", "mlflow.source.name", "mlflow.user", FLOW, DEPLOYMENT)
"""Tags that say who began the run; later attempts leave them as they are."""


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
        "run_name": _name_run(config, settings["run_name"], metadata, tags),
        "total_timesteps": config.total_timesteps,
        "from_step": from_step,
        "started_by": redact_text(tags.get(DEPLOYMENT) or shlex.join(redact_command(sys.argv))),
        "started": datetime.fromisoformat(metadata["started"]).timestamp(),
        "process": {"host": socket.gethostname(), "pid": os.getpid(), "created": psutil.Process().create_time()},
        "params": flatten(settings),
        "tags": {**_make_tags(run_dir, config, metadata, tags), **settings["tags"], **redact(tags)},
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
    run_dir: Path, config: TrainConfig, metadata: Mapping[str, Any], given: Mapping[str, str]
) -> dict[str, str]:
    tags = {
        "run_uid": metadata["run_uid"],
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": str(config.seed),
        "host": socket.gethostname(),
        "run_dir": str(run_dir),
        "mlflow.user": get_user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": _name_source(given.get(DEPLOYMENT), metadata["command"]),
        KIND: _find_kind(metadata["forked_from"], given),
    }
    tags |= {f"{VERSION}{name}": version for name, version in metadata["versions"].items()}
    if (validation := metadata.get("validation")) is not None:
        tags[WARNINGS] = "\n".join(warning["message"] for warning in validation["warnings"]) or "none"
    if (git := metadata["git"]) is not None:
        commit = git["commit"]
        tags |= {"git_commit": commit, "git_dirty": str(git["dirty"]).lower(), "mlflow.source.git.commit": commit}
    return tags


def _find_kind(origin: Mapping[str, Any] | None, tags: Mapping[str, str]) -> str:
    if RETRAINED_FROM in tags:
        return "retraining"
    if origin is None:
        return "training"
    return "fork" if origin.get("fine_tuning") is None else "fine-tuning"


def _name_run(config: TrainConfig, given: str | None, metadata: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """Returns the name in MLflow's lists, which tells runs with the settings of another run from that run."""
    name, origin = given or f"{config.env_id}-{config.algo}-seed{config.seed}", metadata["forked_from"]
    kind, started = _find_kind(origin, tags), datetime.fromisoformat(metadata["started"])
    if kind == "retraining":  # its seed is a long number that says nothing
        return f"{given or f'{config.env_id}-{config.algo}'}-retrained-{started:%Y%m%d-%H%M}"
    if origin is None or (given is not None and origin.get("renamed")):
        return name
    return f"{name}-{'fork' if kind == 'fork' else 'tuned'}-{metadata['run_uid'][:6]}"


def get_user() -> str:
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
