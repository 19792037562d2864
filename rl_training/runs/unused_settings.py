"""The settings that training by itself leaves unused: what a complete run records, evaluates and promotes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rl_training.config.sections import Settings
from rl_training.config.settings import TrainConfig

logger = logging.getLogger(__name__)

UNUSED = (
    "experiment",
    "run_name",
    "tags",
    "job",
    "promotion",
    "tracking",
    "evaluation.final_episodes",
    "evaluation.video",
)
"""Settings that `train_ppo` and the other trainers do not use, but `rl_training.train` and the command line do."""


def warn_of_unused_settings(config: TrainConfig) -> None:
    """Logs which settings were given, by a value other than their default, although nothing here uses them."""
    given = [key for path in UNUSED for key in _list_given(config, path)]
    if given:
        logger.warning(
            "%s: not used here, because this training is neither recorded in MLflow nor evaluated or promoted at its "
            "end; use rl_training.train or rl_training.resume",
            ", ".join(given),
        )


def _list_given(section: Settings, path: str, prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys at or below a path whose values differ from the defaults."""
    name, _, rest = path.partition(".")
    value, default = getattr(section, name), type(section).model_fields[name].get_default(call_default_factory=True)
    if not isinstance(value, Settings):
        if value != default:
            yield prefix + name
        return
    for below in [rest] if rest else type(value).model_fields:
        yield from _list_given(value, below, f"{prefix}{name}.")
