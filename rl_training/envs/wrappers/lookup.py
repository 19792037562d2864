"""Finds a wrapper among the layers of an environment."""

from __future__ import annotations

from typing import Any, TypeVar

import gymnasium as gym

WrapperT = TypeVar("WrapperT", bound=gym.Wrapper[Any, Any, Any, Any])


def find_wrapper(env: gym.Env[Any, Any], kind: type[WrapperT]) -> WrapperT | None:
    """Returns the outermost layer of a class; None if no layer is of it."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, kind):
            return layer
        layer = layer.env
    return None
