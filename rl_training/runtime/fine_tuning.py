"""Fine-tuning: a new run that begins with the weights of a checkpoint, but not with the rest of its state.

Weights are useless without the statistics that normalised their observations, so these are carried over too if the
observations have the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state, load_trainer_state
from rl_training.runtime.checkpoint.manifest import TRAINER
from rl_training.state_checks import restoring

NAMED = 3
"""The largest number of tensors that a message names; `metadata.json` lists all of them."""


@dataclass(frozen=True)
class WeightsOf:
    """A checkpoint whose weights a new run begins with; `make_trainer` gets the checkpoint itself for a resume."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class CarriedOver:
    """The tensors and statistics that a fine-tuned run began with."""

    carried: tuple[str, ...]
    """The names of the parameters that were copied from the checkpoint."""
    fresh: tuple[str, ...]
    """The names of the other parameters, which have new random values because no layer of the checkpoint fits."""
    statistics: Literal["carried over", "fresh", "none"]
    """Whether the observation statistics were carried over or begin fresh; `none` without a normaliser."""

    def __str__(self) -> str:
        named = ", ".join(self.fresh[:NAMED]) + (", ..." if len(self.fresh) > NAMED else "")
        fresh = (
            f", {len(self.fresh)} initialised because no layer of the checkpoint fits ({named})" if self.fresh else ""
        )
        return f"{len(self.carried)} tensors carried over{fresh}; observation statistics: {self.statistics}"


@runtime_checkable
class TakesWeights(Protocol):
    """A trainer that can begin with the weights of a checkpoint; all trainers of networks can."""

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Copies the weights that fit, before `train()`.

        Args:
            policy: The checkpoint's policy state.
            trainer: The checkpoint's trainer state, with the weights that acting does not need; None if it has none.

        Raises:
            CheckpointError: No layer fits.
        """


def carry_over(trainer: object, checkpoint: Checkpoint) -> CarriedOver:
    """Copies the weights of a checkpoint to a new trainer.

    Raises:
        CheckpointError: No layer fits, the checkpoint is damaged, or the algorithm does not support fine-tuning.
    """
    if not isinstance(trainer, TakesWeights):
        raise CheckpointError(
            f"algorithm {checkpoint.algorithm} can't be fine-tuned: its {type(trainer).__name__} has no carry_over; "
            f"add it, or start a new run instead"
        )
    with restoring(checkpoint.path, "the weights", checkpoint.algorithm):
        training = load_trainer_state(checkpoint) if has_training_state(checkpoint) else None
        return trainer.carry_over(load_policy_state(checkpoint), training)


def has_training_state(checkpoint: Checkpoint) -> bool:
    """Returns whether training can resume from a checkpoint; a registered version has only settings and policy."""
    return (checkpoint.path / TRAINER).exists()
