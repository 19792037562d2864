"""Opens an environment for validation; one that can't be made is a finding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import MAKING_SECONDS, CallBlocked, CallWatch
from rl_training.envs.contract.step_contract import Breach, failure
from rl_training.envs.factory import make_bare_env
from rl_training.envs.validation.report import Findings
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused


@contextmanager
def open_env(config: TrainConfig, found: Findings, watch: CallWatch) -> Iterator[gym.Env[Any, Any] | None]:
    """Makes an environment for the block and closes it; yields None, and adds a finding, if it can't be made."""
    try:
        env = watch.call("making it", make_bare_env, config, seconds=MAKING_SECONDS)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "not-made", str(error).removeprefix(f"environment {config.env_id!r}: "))])
        yield None
        return
    except CallBlocked as error:
        found.add([failure("making it", error)])
        yield None
        return
    try:
        yield env
    finally:
        try:
            watch.call("close", env.close)
        except USER_CODE_ERRORS as error:
            found.add([Breach("warning", "close", failure("close", error).message)])
