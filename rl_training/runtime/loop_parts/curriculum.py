"""The curriculum of a run: stages that change the training environments by step or by success rate."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rl_training.config.sections import CurriculumStage
from rl_training.config.settings import TrainConfig
from rl_training.envs.episodes.episode_numbers import IS_SUCCESS
from rl_training.envs.training_envs import Episode, TrainingEnvs
from rl_training.errors import CheckpointError, ConfigError
from rl_training.state_checks import Count, validate

logger = logging.getLogger(__name__)


@dataclass
class Place:
    """The place of a run in its curriculum, which every checkpoint holds."""

    stage: Count = 0
    """The number of the stage, from 1; 0 before the first one begins."""
    successes: list[Literal[0, 1]] = field(default_factory=list)
    """Whether each of the latest episodes that ended in this stage was a success, as far as the next stage asks."""


class Curriculum:
    """Begins the stages of `curriculum`, one after another.

    Attributes stay as an earlier stage has set them; reset options are those of the settings and of the stage.

    Args:
        config: The settings, with at least one stage.
        envs: The training environments.

    Raises:
        ConfigError: The algorithm does not offer its environments.
    """

    def __init__(self, config: TrainConfig, envs: TrainingEnvs | None) -> None:
        if envs is None:
            raise ConfigError(
                f"curriculum: the trainer of {config.algo} has no `envs` of the class TrainingEnvs, whose attributes a "
                f"curriculum changes; remove curriculum, or train with another algorithm"
            )
        self._stages, self._options = config.curriculum, config.reset_options
        self._sets_options = any(stage.reset_options for stage in config.curriculum)
        self._envs, self._place, self._warned = envs, Place(), False

    @property
    def stage(self) -> int:
        """The number of the stage, from 1; 0 before the first one begins."""
        return self._place.stage

    def count(self, episodes: Iterable[Episode]) -> None:
        """Counts episodes that have ended in this stage."""
        if self.stage == len(self._stages) or self._stages[self.stage].success_rate is None:
            return
        successes = self._place.successes
        for episode in episodes:
            if IS_SUCCESS in episode.numbers:
                successes.append(1 if episode.numbers[IS_SUCCESS] else 0)
            elif not self._warned:
                self._warned = True
                logger.warning(
                    "curriculum: stage %d waits for a success rate, and an episode ended without is_success in its "
                    "last info; such episodes are not counted",
                    self.stage + 1,
                )
        del successes[: -self._stages[self.stage].episodes]

    def advance(self, num_timesteps: int) -> None:
        """Begins each stage whose condition holds; call it where the state of training is consistent."""
        while self.stage < len(self._stages) and self._is_due(self._stages[self.stage], num_timesteps):
            self._begin(self._stages[self.stage])
            self._place = Place(self.stage + 1)
            logger.info("curriculum: stage %d of %d at step %s", self.stage, len(self._stages), f"{num_timesteps:,}")

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the curriculum; the environments keep what the stages have changed."""
        return asdict(self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the place that `state_dict` returned.

        Raises:
            CheckpointError: It is no place in this curriculum.
        """
        place = validate("curriculum", state, Place)
        if place.stage > len(self._stages):
            raise CheckpointError(f"curriculum: got stage {place.stage}, expected at most {len(self._stages)}")
        self._place = place

    def _is_due(self, stage: CurriculumStage, num_timesteps: int) -> bool:
        if stage.success_rate is None:
            return num_timesteps >= (stage.from_step or 0)
        successes = self._place.successes
        return len(successes) >= stage.episodes and sum(successes) >= stage.success_rate * len(successes)

    def _begin(self, stage: CurriculumStage) -> None:
        for name, value in stage.attributes.items():
            self._envs.set_attr(name, [deepcopy(value) for _ in range(self._envs.num_envs)])
        if self._sets_options:
            self._envs.set_reset_options({**self._options, **stage.reset_options})
