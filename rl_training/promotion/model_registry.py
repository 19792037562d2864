"""The registered model of a task: its name, its versions and its champion."""

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint import Checkpoint, checkpoint_name
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.checkpoint_sources import CHECKPOINT_TAG
from rl_training.tracking.mlflow_store import UNKNOWN_CODES, create_or_find, no_resend
from rl_training.tracking.pyfunc import check_model, save_model
from rl_training.tracking.shipping.logged_models import get_or_create_logged_model, link_version
from rl_training.tracking.version_files import download_verified_copy

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

CHAMPION, CHALLENGER = "champion", "challenger"

MOST_DESCRIPTION = 5_000
"""Limit on the length of a version's description in MLflow's database."""

CANDIDATE_KEY = "candidate_key"
"""Tag of a version: its run and policy, so that offering the same candidate again creates no second version."""


def get_model_name(config: TrainConfig) -> str:
    """Returns the name of the task's registered model: `promotion.model`, else a legal form of the environment's id."""
    return config.promotion.model or re.sub(r"[^\w.\-]+", "-", config.env_id, flags=re.ASCII)[:200]


def get_champion(client: MlflowClient, model: str) -> ModelVersion | None:
    """Returns the version with the alias `champion`, or None if there is no such model or alias.

    Raises:
        MlflowException: The registry returns another error, which must not be taken for a missing champion.
    """
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(model, CHAMPION)
    except MlflowException as error:
        if error.error_code in UNKNOWN_CODES:
            return None
        raise


def remove_challenger(client: MlflowClient, version: ModelVersion) -> None:
    """Removes the alias `challenger` from a version that has it."""
    aliases = client.get_registered_model(version.name).aliases
    if str(aliases.get(CHALLENGER)) == str(version.version):
        client.delete_registered_model_alias(version.name, CHALLENGER)


def set_description(client: MlflowClient, version: ModelVersion, text: str) -> None:
    """Sets a version's description, in Markdown, cut at the length that MLflow stores."""
    client.update_model_version(version.name, version.version, text[:MOST_DESCRIPTION])


def get_or_register(
    client: MlflowClient, uri: str, model: str, checkpoint: Checkpoint, config: TrainConfig, run_id: str
) -> tuple[ModelVersion, Checkpoint]:
    """Returns the version of a run and policy, and its copy of the checkpoint; registers it if it does not exist.

    A version is self-contained: it is an MLflow model of its own, not an artifact of the run. MLflow loads and runs the
    model before it is uploaded. The uploaded files are then compared with the model, and only the policy in them is
    loaded; no code that the store names is run.

    Raises:
        CheckpointError: The registered version differs from the checkpoint or can't be used.
    """
    key = f"{run_id}:{checkpoint.policy_sha256}"
    version = _find(client, model, key) or _register(client, model, checkpoint, config, run_id, key)
    try:
        copy = download_verified_copy(client, uri, version)
        if copy.policy_sha256 != checkpoint.policy_sha256:
            raise CheckpointError(f"it holds the policy {copy.policy_sha256}, expected {checkpoint.policy_sha256}")
        load_policy(copy)
    except CheckpointError as error:
        raise CheckpointError(
            f"version {version.version} of {model} can't be used: {error}; delete that version and its logged model in "
            f"MLflow and try again"
        ) from error
    return version, copy


def _register(
    client: MlflowClient, model: str, checkpoint: Checkpoint, config: TrainConfig, run_id: str, key: str
) -> ModelVersion:
    _create_model(client, model, config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_model(checkpoint, path)
        check_model(path, load_policy(checkpoint))
        logged = get_or_create_logged_model(client, run_id, checkpoint, path)
    tags = {
        CANDIDATE_KEY: key,
        CHECKPOINT_TAG: checkpoint_name(checkpoint.num_timesteps),
        "run_uid": checkpoint.run_uid,
        "policy_sha256": checkpoint.policy_sha256,
        "num_timesteps": str(checkpoint.num_timesteps),
        "algo": checkpoint.algorithm,
        "env_id": config.env_id,
    }
    source, model_id = logged.artifact_location, logged.model_id
    create = partial(client.create_model_version, model, source=source, run_id=run_id, tags=tags, model_id=model_id)
    version = create_or_find(create, lambda: _find(client, model, key))
    link_version(client, logged, version)
    return version


def _create_model(client: MlflowClient, model: str, config: TrainConfig) -> None:
    from mlflow.exceptions import MlflowException

    try:
        with no_resend():
            client.create_registered_model(model, tags={"env_id": config.env_id}, description=_describe_model(model))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _describe_model(model: str) -> str:
    return (
        f"Policies of `rl_training`; each version's description has the verdict on it. The alias `champion` is the one "
        f"in use: `rl-training evaluate models:/{model}@champion` plays it, `rl-training promote RUN_ID` offers a "
        f"rival, and `rl-training rollback {model} --reason TEXT` restores the champion before it."
    )


def _find(client: MlflowClient, model: str, key: str) -> ModelVersion | None:
    found = client.search_model_versions(f"name = '{model}' and tags.{CANDIDATE_KEY} = '{key}'")
    return min(found, key=lambda version: int(version.version), default=None)
