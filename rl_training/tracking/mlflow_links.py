"""Builds links to the pages that MLflow shows for runs and registered versions."""

from __future__ import annotations

import os
import shlex
from urllib.parse import quote

from rl_training.system.paths import HOME_VARIABLE, URI_VARIABLE, embedded_tracking_uri, home
from rl_training.system.programs import program
from rl_training.tracking.mlflow_store import is_server, strip_credentials

UI_VARIABLE = "RL_TRAINING_MLFLOW_UI"
"""Environment variable with the address of MLflow's pages, if it differs from the address of its API."""


def get_ui_url(uri: str) -> str | None:
    """Returns the address of MLflow's pages without credentials, or None if no server is known that shows them."""
    address = os.environ.get(UI_VARIABLE) or (uri if is_server(uri) else "")
    return strip_credentials(address).rstrip("/") or None


def make_run_fragment(experiment_id: str, run_id: str) -> str:
    """Returns the part of a run page's address that follows the address of MLflow."""
    # Without `workflowType` MLflow shows its pages for language models.
    return f"#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def make_version_fragment(model: str, version: str) -> str:
    """Returns the part of a registered version page's address that follows the address of MLflow."""
    return f"#/models/{quote(model, safe='')}/versions/{version}"


def get_version_url(uri: str, model: str, version: str) -> str | None:
    """Returns the address of a registered version's page, or None if no server is known that shows it."""
    address = get_ui_url(uri)
    return None if address is None else f"{address}/{make_version_fragment(model, version)}"


def get_ui_hint(uri: str, experiment_id: str, run_id: str) -> str:
    """Returns the address of a run's page, or the command that opens it if no server is known."""
    if (address := get_ui_url(uri)) is not None:
        return f"{address}/{make_run_fragment(experiment_id, run_id)}"
    return f"{_store_setting(uri)}{program('rl-training')} ui {run_id}"


def _store_setting(uri: str) -> str:
    """Returns the environment variable that makes a command in another shell use this store; never has a password."""
    if uri == embedded_tracking_uri():
        return f"{HOME_VARIABLE}={shlex.quote(str(home()))} " if os.environ.get(HOME_VARIABLE) else ""
    return f"{URI_VARIABLE}={shlex.quote(uri)} " if strip_credentials(uri) == uri else ""
