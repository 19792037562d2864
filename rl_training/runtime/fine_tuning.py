"""Fine-tuning: a new run that begins with the weights of a checkpoint, and with nothing else of it.

Weights are of no use without the statistics that their observations were normalised by, so those come too where the
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
"""Tensors that a message names, at most; `metadata.json` has all of them."""


@dataclass(frozen=True)
class WeightsOf:
    """What a new run is fine-tuned from; given to `make_trainer` where a resume gives the checkpoint itself."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class CarriedOver:
    """What a fine-tuned run began with."""

    carried: tuple[str, ...]
    """Parameters that are the checkpoint's, by name."""
    fresh: tuple[str, ...]
    """Parameters that are drawn anew: the checkpoint has none of this name, or its layer has another shape."""
    statistics: Literal["carried over", "fresh", "none"]
    """What became of the observation statistics."""

    def __str__(self) -> str:
        named = ", ".join(self.fresh[:NAMED]) + (", ..." if len(self.fresh) > NAMED else "")
        fresh = (
            f", {len(self.fresh)} drawn anew, since the checkpoint has none that fit ({named})" if self.fresh else ""
        )
        return f"{len(self.carried)} tensors carried over{fresh}; observation statistics: {self.statistics}"


@runtime_checkable
class TakesWeights(Protocol):
    """A trainer that can be fine-tuned: those of networks are."""

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Takes over the weights that fit, before `train()`.

        Args:
            policy: A checkpoint's policy state.
            trainer: Its trainer state, with the weights that acting does not need; None where it has none.

        Raises:
            CheckpointError: No layer fits.
        """


def carry_over(trainer: object, checkpoint: Checkpoint) -> CarriedOver:
    """Gives a new trainer the weights of a checkpoint.

    Raises:
        CheckpointError: No layer fits, the checkpoint is damaged, or the algorithm has no way to do it.
    """
    if not isinstance(trainer, TakesWeights):
        raise CheckpointError(
            f"{checkpoint.algorithm} can't be fine-tuned: its trainer has no carry_over; start a new run instead"
        )
    with restoring(f"{checkpoint.path} is refused: it does not hold the weights of {checkpoint.algorithm}"):
        training = load_trainer_state(checkpoint) if has_training_state(checkpoint) else None
        return trainer.carry_over(load_policy_state(checkpoint), training)


def has_training_state(checkpoint: Checkpoint) -> bool:
    """Returns whether training can go on from a checkpoint; a registered version's own copy has settings and policy."""
    return (checkpoint.path / TRAINER).exists()
