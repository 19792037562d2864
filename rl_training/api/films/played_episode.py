"""An episode that was played to be watched, and the policy and settings that play it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.config.named_modules import allowing
from rl_training.config.settings import TrainConfig
from rl_training.envs.episodes.episode_numbers import IS_SUCCESS
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import load_policy
from rl_training.seeding import episode_seeds
from rl_training.tracking.checkpoint_sources import download_checkpoint


@dataclass(frozen=True, kw_only=True)
class PlayedEpisode:
    """The result of an episode."""

    seed: int
    """The argument of `reset(seed=...)`."""
    return_: float
    """The undiscounted return."""
    length: int
    """The number of steps."""
    success: bool | None
    """Whether the episode was successful; None if the environment does not say so."""
    cut: bool
    """Whether the episode was cut at `evaluation.max_episode_steps`."""
    film: Path | None = None
    """The film of the episode, if it was recorded."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        film = None if self.film is None else str(self.film)
        result = {"seed": self.seed, "return": self.return_, "length": self.length, "success": self.success}
        return {**result, "cut": self.cut, "film": film}

    def words(self) -> list[str]:
        """Returns the result in words: return, length, and success if it is known."""
        words = [f"return {self.return_:.6g}", f"length {self.length}"]
        if self.success is not None:
            words.append("success" if self.success else "failure")
        return [*words, "cut"] if self.cut else words


class Show(NamedTuple):
    """The policy of a source, and what it plays."""

    checkpoint: Checkpoint
    policy: Policy
    config: TrainConfig
    """The settings of the run for evaluation."""
    seeds: list[int]
    """The seeds of the episodes: the first ones of a held-out evaluation."""


def prepare_show(
    source: str | PathLike[str] | Checkpoint, episodes: int, seed: int | None, allow_modules: Collection[str]
) -> Show:
    """Finds the policy of a source and the episodes to play.

    Args:
        source: See `rl_training.load_policy`.
        episodes: The number of episodes.
        seed: The seed from which the episode seeds are drawn; by default `evaluation.seed`.
        allow_modules: Modules that a received checkpoint may import.

    Raises:
        CheckpointError: There is no good checkpoint.
        ModuleRefused: A received checkpoint names a module that is not allowed.
        TrackingError: MLflow can't be reached.
        UserError: The source does not exist.
        ValueError: The number of episodes is less than 1.
    """
    if episodes < 1:
        raise ValueError(f"got {episodes} episodes, expected at least 1")
    checkpoint = download_checkpoint(source, wanted="policy")
    config = config_of_checkpoint(checkpoint, allow_modules=allow_modules).for_evaluation()
    seeds = episode_seeds(config.evaluation.seed if seed is None else seed, "held_out", episodes)
    with allowing(allow_modules):
        return Show(checkpoint, load_policy(checkpoint), config, list(seeds))


def read_success(numbers: Mapping[str, float]) -> bool | None:
    """Returns whether an episode was successful, from its numbers; None if the environment does not say so."""
    return bool(numbers[IS_SUCCESS]) if IS_SUCCESS in numbers else None
