"""The functions and types that a user calls from Python; `rl_training/__init__.py` lists them."""

import rl_training
from rl_training import *  # noqa: F403

__all__ = [name for name in rl_training.__all__ if name != "__version__"]
