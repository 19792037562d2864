"""Checks that a trainer, which may come from another package, has the parts that belong together."""

from __future__ import annotations

from rl_training.errors import UserError
from rl_training.state_checks import describe_lack


def require_replay_loader(trainer: type, base: type, algorithm: str) -> None:
    """Checks that a trainer that saves a replay buffer restores it too.

    Args:
        trainer: The class of the trainer.
        base: The class whose `_replay_shards` and `_load_replay` do nothing.
        algorithm: The name of the algorithm.

    Raises:
        UserError: It overrides `_replay_shards` alone.
    """
    saves, loads = (getattr(trainer, name) is not getattr(base, name) for name in ("_replay_shards", "_load_replay"))
    if saves and not loads:
        lack = f"its {trainer.__name__} has no _load_replay, which restores what its _replay_shards has saved"
        raise UserError(describe_lack(algorithm, lack))
