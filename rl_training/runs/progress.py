"""The counters of a run and the results of its latest episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from rl_training.config.settings import TrainConfig
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.envs.training_envs import Episode, VectorStep
from rl_training.runs.evaluation_result import MEANS
from rl_training.state_checks import Count, validate

RECENT_EPISODES = 100
"""`rollout/*` metrics are means over this many of the latest finished episodes."""

Phase = Literal["collect", "update"]
NumberName = Annotated[str, Field(pattern=r"^(raw_return|is_success|info/[/\w.\- :]{1,100})$")]


@dataclass
class Progress:
    """The counters of a run, which every checkpoint holds."""

    num_timesteps: Count = 0
    iteration: Count = 0
    phase: Phase = "collect"
    episodes: Count = 0
    last_log: Count = 0
    last_evaluation: Count = 0
    best_return: FiniteFloat | None = None
    recent_returns: list[FiniteFloat] = field(default_factory=list)
    recent_lengths: list[Count] = field(default_factory=list)
    recent_numbers: dict[NumberName, Annotated[list[FiniteFloat], Field(min_length=1)]] = field(default_factory=dict)
    """The latest values of each of `Episode.numbers`."""

    def count_step(self, step: VectorStep, num_envs: int) -> None:
        """Counts a step of all environments."""
        self.num_timesteps += num_envs
        if step.episodes:  # on few steps
            self.count(step.episodes)

    def count(self, episodes: Sequence[Episode]) -> None:
        """Counts episodes that have just ended, and keeps their results."""
        self.episodes += len(episodes)
        for episode in episodes:
            self.recent_returns.append(episode.return_)
            self.recent_lengths.append(episode.length)
            for name, value in episode.numbers.items():
                values = self.recent_numbers.setdefault(name, [])
                values.append(value)
                del values[:-RECENT_EPISODES]
        del self.recent_returns[:-RECENT_EPISODES], self.recent_lengths[:-RECENT_EPISODES]

    def rollout_metrics(self) -> dict[str, float]:
        """Returns the `rollout/*` metrics; means are left out until an episode has ended."""
        metrics = {"rollout/episodes": float(self.episodes)}
        if self.recent_returns:
            metrics["rollout/episode_return_mean"] = float(np.mean(self.recent_returns))
            metrics["rollout/episode_length_mean"] = float(np.mean(self.recent_lengths))
        for name, values in self.recent_numbers.items():
            metrics[f"rollout/{MEANS.get(name, name)}"] = float(np.mean(values))
        return metrics

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a checkpoint holds them: without `recent_numbers` if there are none.

        The lists are those of this object.
        """
        fields = vars(self).copy()
        if not self.recent_numbers:
            del fields["recent_numbers"]
        return fields


def load_progress(state: Any, config: TrainConfig) -> Progress:
    """Returns the progress in a checkpoint, without numbers of episodes that the settings no longer ask for.

    Raises:
        CheckpointError: It is no progress.
    """
    progress: Progress = validate("progress", state, Progress)
    names = EpisodeNumbers(config).names
    progress.recent_numbers = {name: values for name, values in progress.recent_numbers.items() if name in names}
    return progress
