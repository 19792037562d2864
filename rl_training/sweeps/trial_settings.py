"""The settings of a trial's runs: those of the base config with a point of the space and a seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError, one_line, printable
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


def _name_run(name: str, params: Mapping[str, Any], seed: int) -> str:
    """Returns a name such as `cartpole: learning_rate=0.0003 gamma=0.98 seed=1`."""
    values = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in params.items()]
    text = printable(f"{name}: {' '.join([*values, f'seed={seed}'])}")
    return text if len(text) <= MOST_NAME_CHARACTERS else f"{text[: MOST_NAME_CHARACTERS - 3]}..."
