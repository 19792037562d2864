"""The functions and types that a user calls from Python; `rl_training/__init__.py` lists them."""

from typing import Any

import rl_training

__all__ = [name for name in rl_training.__all__ if name != "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(rl_training, name)
