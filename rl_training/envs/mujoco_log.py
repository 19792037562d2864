"""Logs MuJoCo's warnings, which MuJoCo itself would append to MUJOCO_LOG.TXT in the working folder."""

from __future__ import annotations

import logging
import sys
from functools import lru_cache

from gymnasium.envs.registration import EnvSpec, load_env_creator

logger = logging.getLogger(__name__)


def log_mujoco_warnings(spec: EnvSpec) -> None:
    """Imports the code that makes an environment and, if this imports MuJoCo, logs MuJoCo's warnings from then on.

    MuJoCo has one warning handler per process; a handler that is already set stays.
    """
    if isinstance(spec.entry_point, str):
        load_env_creator(spec.entry_point)
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log)


@lru_cache(maxsize=64)  # MuJoCo repeats a warning about a model for each environment; logging it once is enough.
def _log(text: str) -> None:
    # Only the author of a model, who may be Gymnasium, can replace its deprecated parts.
    level = logging.DEBUG if "is deprecated" in text else logging.WARNING
    logger.log(level, "MuJoCo: %s", text)
