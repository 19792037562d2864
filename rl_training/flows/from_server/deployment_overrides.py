"""Merging a flow run's `overrides` with those that its deployment stores.

Prefect replaces a stored parameter if a flow run is started with one of the same name. Overrides are merged instead.
"""

from __future__ import annotations

from typing import Any

from prefect.runtime import deployment

from rl_training.config.parsing import Overrides, merge_overrides


def merge_stored_overrides(overrides: Overrides | None) -> Overrides:
    """Returns the overrides of this flow run's deployment, updated with those of the flow run.

    Args:
        overrides: The flow run's parameter. If it was started without one, Prefect passes the stored overrides.

    Raises:
        ConfigError: An override can't be read, or a key is given twice.
    """
    stored = _read_stored_parameters().get("overrides")
    return merge_overrides(stored, overrides or {}) if stored else overrides or {}


def _read_stored_parameters() -> dict[str, Any]:
    """Returns the parameters that this flow run's deployment stores; empty if the flow was called in this process."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    if deployment.id is None:
        return {}
    try:
        with get_client(sync_client=True) as client:
            return client.read_deployment(deployment.id).parameters
    except ObjectNotFound:  # deleted while this flow run waited
        return {}
