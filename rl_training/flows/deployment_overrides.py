"""The overrides that a deployment stores, under those that a run of it is started with.

Prefect puts a parameter that is given in place of the stored one, whole; overrides are merged.
"""

from __future__ import annotations

from typing import Any

from prefect.runtime import deployment

from rl_training.config.parsing import Overrides, merge_overrides


def over_stored(overrides: Overrides | None) -> Overrides:
    """Returns the overrides of this flow run: those given, and for what they don't name, those of its deployment.

    Args:
        overrides: Those given, which are the stored ones where none were.

    Raises:
        ConfigError: One can't be read, or a key is given twice.
    """
    stored = _stored().get("overrides")
    return merge_overrides(stored, overrides or {}) if stored else overrides or {}


def _stored() -> dict[str, Any]:
    """Returns the parameters that the deployment of this flow run stores; none of a flow that was called."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    if deployment.id is None:
        return {}
    try:
        with get_client(sync_client=True) as client:
            return client.read_deployment(deployment.id).parameters
    except ObjectNotFound:  # it was deleted while this flow run waited
        return {}
