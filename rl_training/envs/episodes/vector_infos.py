"""Reads the infos of a native vector environment row by row.

Such infos are a mapping from keys to arrays with one value for each environment. `_key` beside `key` is an optional
mask of the environments that gave a value (`gymnasium.vector.VectorEnv`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def take_row(infos: Mapping[str, Any], row: int, num_envs: int) -> dict[str, Any]:
    """Returns the info of one environment; values that are not one for each environment are left out."""
    info: dict[str, Any] = {}
    for key, values in infos.items():
        mask: Any = infos.get(f"_{key}")
        given = not _has_rows(mask, num_envs) or bool(mask[row])
        if not given or (key.startswith("_") and key[1:] in infos):
            continue
        if isinstance(values, Mapping):
            info[key] = take_row(values, row, num_envs)
        elif _has_rows(values, num_envs):
            info[key] = values[row]
    return info


def take_final_row(infos: Mapping[str, Any], row: int, num_envs: int) -> dict[str, Any]:
    """Returns the info of the last step of an environment whose episode ended, in the SAME_STEP mode.

    There the infos are of the next episode's reset, and `final_info` holds those of the step, if it is given.
    """
    final = infos.get("final_info", infos)
    if isinstance(final, Mapping):
        return take_row(final, row, num_envs)
    own = final[row] if _has_rows(final, num_envs) else None
    return dict(own) if isinstance(own, Mapping) else {}


def _has_rows(values: Any, num_envs: int) -> bool:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__getitem__"):
        return False
    try:
        return len(values) == num_envs
    except TypeError:  # an array of no dimension
        return False
