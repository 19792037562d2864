"""References to Prefect's secret blocks, `${prefect:BLOCK}`, resolved where an environment is made and nowhere else."""

from __future__ import annotations

import json
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from typing import Any

from rl_training.errors import ConfigError
from rl_training.security.secrets import register_lookup


def hand_down_blocks() -> None:
    """Has references to blocks resolved in this process; to be called in a flow, whose server they are on.

    A secret is fetched once in a flow run, so that a server that is away later does not end a training. It is kept in
    memory alone.
    """
    context = copy_context()  # environments are made in threads that know nothing of the flow, and of its server

    @cache
    def look_up(reference: str) -> str:
        return context.copy().run(_secret, reference)

    register_lookup("prefect", look_up)


def _secret(reference: str) -> str:
    """Returns the secret in `BLOCK`, or under `KEY` in a block that holds a mapping: `BLOCK.KEY`."""
    block, _, key = reference.partition(".")
    value = _value_of(block)
    if key and isinstance(value, str):  # a form makes text of a mapping
        with suppress(ValueError):
            value = json.loads(value)
    if key or isinstance(value, dict):
        if not isinstance(value, dict) or key not in value:
            has = f"the keys {', '.join(value)}; name one of them, BLOCK.KEY" if isinstance(value, dict) else "no keys"
            raise ConfigError(f"${{prefect:{reference}}}: the block {block} has {has}")
        value = value[key]
    return value if isinstance(value, str) else json.dumps(value)


def _value_of(block: str) -> Any:
    import httpx
    from prefect.blocks.system import Secret

    try:
        found: Any = Secret.load(block, _sync=True)  # type: ignore[call-arg]
        return found.value.get_secret_value()  # and not `found.get()`, which makes numbers and truth values of text
    except ValueError:
        raise ConfigError(
            f"${{prefect:{block}}}: the Prefect server has no Secret block of this name; make one in its pages under "
            f"Blocks, or in Python: Secret(value=...).save({block!r})"
        ) from None
    except httpx.HTTPError as error:
        reason = type(error).__name__
        raise ConnectionError(f"${{prefect:{block}}}: the Prefect server can't be asked: {reason}") from None
