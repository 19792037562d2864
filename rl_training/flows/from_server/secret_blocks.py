"""Resolving references to Prefect's secret blocks, `${prefect:BLOCK}`, when an environment is created."""

from __future__ import annotations

import json
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from typing import Any

from rl_training.errors import ConfigError
from rl_training.security.secrets import register_lookup


def enable_secret_blocks() -> None:
    """Makes this process resolve references to blocks. Call it in a flow, whose server has the blocks.

    A secret is fetched once in a flow run, so that training continues if the server is away later. It is kept in memory
    only.
    """
    context = copy_context()  # environments are created in threads, which don't inherit the flow's server settings

    @cache
    def look_up(reference: str) -> str:
        return context.copy().run(_fetch_secret, reference)

    register_lookup("prefect", look_up)


def _fetch_secret(reference: str) -> str:
    """Returns the secret of the block `BLOCK`, or for `BLOCK.KEY` the value of `KEY` in a block that is a mapping."""
    block, _, key = reference.partition(".")
    value = _fetch_value(block)
    if key and isinstance(value, str):  # Prefect's form stores a mapping as text
        with suppress(ValueError):
            value = json.loads(value)
    if key or isinstance(value, dict):
        if not isinstance(value, dict) or key not in value:
            keys = f"the keys {', '.join(value)}; name one of them, BLOCK.KEY" if isinstance(value, dict) else "no keys"
            raise ConfigError(f"${{prefect:{reference}}}: the block {block} has {keys}")
        value = value[key]
    return value if isinstance(value, str) else json.dumps(value)


def _fetch_value(block: str) -> Any:
    import httpx
    from prefect.blocks.system import Secret

    try:
        found: Any = Secret.load(block, _sync=True)  # type: ignore[call-arg]
        return found.value.get_secret_value()  # `found.get()` would convert text to numbers and booleans
    except ValueError:
        raise ConfigError(
            f"${{prefect:{block}}}: the Prefect server has no Secret block of this name; create one in its pages under "
            f"Blocks, or in Python: Secret(value=...).save({block!r})"
        ) from None
    except httpx.HTTPError as error:
        reason = type(error).__name__
        raise ConnectionError(f"${{prefect:{block}}}: the Prefect server can't be reached: {reason}") from None
