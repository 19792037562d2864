"""MuJoCo's warnings as log records; by itself it appends them to MUJOCO_LOG.TXT in the folder that one is in."""

from __future__ import annotations

import logging
import sys
from functools import lru_cache

from gymnasium.envs.registration import EnvSpec, load_env_creator

logger = logging.getLogger(__name__)


def log_mujoco_warnings(spec: EnvSpec) -> None:
    """Imports what an environment is made by, and where MuJoCo is among it, takes over its warnings.

    MuJoCo has one handler a process; one that is set already stays.
    """
    if isinstance(spec.entry_point, str):
        load_env_creator(spec.entry_point)
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log)


@lru_cache(maxsize=64)  # A warning about a model comes with each environment that is made of it: once is enough.
def _log(text: str) -> None:
    # What is deprecated in a model is for its author to change, who may be Gymnasium.
    level = logging.DEBUG if "is deprecated" in text else logging.WARNING
    logger.log(level, "MuJoCo: %s", text)
