"""The settings of a trial's runs: those of the base config with a point of the space and a seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError, one_line, printable
from rl_training.security.secrets import redact
from rl_training.sweeps.loading import Sweep

MOST_NAME_CHARACTERS = 250


def make_trial_config(sweep: Sweep, params: Mapping[str, Any], seed: int) -> TrainConfig:
    """Returns the settings of a run, checked as those of a file.

    Args:
        sweep: The sweep.
        params: The point, as settings by dotted key.
        seed: The training seed.

    Raises:
        ConfigError: The settings are not valid together; the message has a line for each fault.
    """
    return sweep.base.replace(**{**params, "seed": seed, "run_name": _name_run(sweep.name, params, seed)})


def find_fault(sweep: Sweep, params: Mapping[str, Any]) -> str | None:
    """Returns why the settings refuse a point, or None if they take it."""
    try:
        sweep.base.replace(**params)
    except ConfigError as error:
        return one_line(error)
    return None


def format_point(params: Mapping[str, Any]) -> str:
    """Returns settings as `learning_rate=0.001 gamma=0.98`, without secrets."""
    shown = redact(dict(params))
    texts = (f"{key}={one if isinstance(one, str) else json.dumps(one, default=str)}" for key, one in shown.items())
    return printable(" ".join(texts))


def _name_run(name: str, params: Mapping[str, Any], seed: int) -> str:
    """Returns a name such as `cartpole: learning_rate=0.0003 gamma=0.98 seed=1`."""
    text = f"{printable(name)}: {format_point({**params, 'seed': seed})}"
    return text if len(text) <= MOST_NAME_CHARACTERS else f"{text[: MOST_NAME_CHARACTERS - 3]}..."
