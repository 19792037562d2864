"""The infos of environments in worker processes, which hold plain data and arrays alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rl_training.envs.episodes.plain_values import NotPlain, copy_plain

logger = logging.getLogger(__name__)

SentInfo = tuple[dict[str, Any], dict[str, str]]
"""A result of `copy_plain_info`."""


class SentInfos:
    """Takes the infos that `copy_plain_info` made, and warns once of each key that was left out.

    Args:
        env_id: The id in the settings, for messages.
    """

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._named: set[str] = set()

    def take(self, sent: Iterable[SentInfo]) -> list[dict[str, Any]]:
        """Returns the infos alone."""
        infos = []
        for info, left_out in sent:
            infos.append(info)
            for key in left_out.keys() - self._named:
                self._named.add(key)
                logger.warning(
                    "environment %s: info[%r] holds a %s, which is not sent between processes, so it is left out",
                    *(self._env_id, key, left_out[key]),
                )
        return infos


def copy_plain_info(info: Mapping[str, Any]) -> SentInfo:
    """Returns the entries of an info that can be sent between processes, and the types of the others by key.

    Arrays of numbers and text are kept as well.
    """
    kept: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for key, value in info.items():
        try:
            kept[key] = _copy_with_arrays(value)
        except NotPlain:
            left_out[str(key)] = type(value).__name__
    return kept, left_out


def _copy_with_arrays(value: Any) -> Any:
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        if value.dtype.hasobject:
            raise NotPlain
        return value
    if type(value) is dict:
        return {copy_plain(key): _copy_with_arrays(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy_with_arrays, value))
    return copy_plain(value)
