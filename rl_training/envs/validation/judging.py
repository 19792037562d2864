"""Checks that the environment gives the numbers that the settings judge by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.step_contract import Breach
from rl_training.envs.episodes.episode_numbers import IS_SUCCESS, RAW_RETURN, REFUSED, EpisodeNumbers
from rl_training.envs.validation.report import format_count


def list_users_of_success(config: TrainConfig) -> list[str]:
    """Returns the settings that are decided by `info["is_success"]`."""
    stages = [f"curriculum.{i}.success_rate" for i, s in enumerate(config.curriculum) if s.success_rate is not None]
    return [*stages, *(["promotion.success_floor"] if config.promotion.success_floor is not None else [])]


def check_episodes_of_promotion(config: TrainConfig) -> list[Breach]:
    """Returns a warning if the gate plays so few episodes that rare failures may not appear among them."""
    promotion = config.promotion
    if not promotion.enabled or promotion.episodes >= promotion.least_episodes:
        return []
    message = (
        f"promotion.episodes is {promotion.episodes}: at promotion.confidence {promotion.confidence} it takes "
        f"{promotion.least_episodes} episodes to see a failure of a policy that fails in 5 % of them, so the gate errs "
        f"more often than stated about such policies; set promotion.episodes to at least {promotion.least_episodes}"
    )
    return [Breach("warning", "few-episodes", message)]


def check_last_infos(config: TrainConfig, last_infos: Sequence[Mapping[str, Any]]) -> list[Breach]:
    """Returns a warning for each number that the settings ask for and that complete episodes did not give.

    Args:
        config: The settings.
        last_infos: The info of the last step of each complete episode.
    """
    if not last_infos:
        return []
    numbers, users = EpisodeNumbers(config), list_users_of_success(config)
    values = np.empty((len(last_infos), len(numbers.names)))
    for row, info in zip(values, last_infos, strict=True):
        numbers.write(row, info, None)
    breaches = []
    for name, column in zip(numbers.names, values.T, strict=True):
        if name == RAW_RETURN:  # which no info gives
            continue
        key = name.removeprefix("info/")
        asked = ", ".join(users) if name == IS_SUCCESS else "metrics.info"
        if (column == REFUSED).any():
            message = (
                f"info[{key!r}] of an episode's last step is {numbers.refused[name]}, not a number; it is left out"
            )
            breaches.append(Breach("warning", "info-type", message, subject=key))
        elif asked and np.isnan(column).all():
            known = ", ".join(sorted({str(other) for info in last_infos for other in info})) or "none"
            message = (
                f"{asked} needs info[{key!r}] in the last step of an episode, and none of "
                f"{format_count(len(last_infos), 'episode')} gave it (keys there: {known})"
            )
            breaches.append(Breach("warning", "no-info", message, subject=key))
    return breaches
