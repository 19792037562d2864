"""The orders that rank 0 gives to the other ranks, so that all of them do the same at the same step."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch

from rl_training.distributed.share import Exchange


class Command(IntEnum):
    """What the ranks do next."""

    END = 1
    """Close everything."""
    START = 2
    """Take rank 0's weights, and begin the first episodes."""
    LOAD = 3
    """Take this rank's part of a checkpoint."""
    COLLECT = 4
    """Take some steps: their number, and the length of the rollout."""
    UPDATE = 5
    """Learn from the rollout: the number of environment steps before it."""
    SAVE = 6
    """Send the state of this rank's environments and rollout to rank 0."""


class Order(NamedTuple):
    """A command with its numbers."""

    command: Command
    first: int = 0
    second: int = 0


def give(exchange: Exchange, order: Order) -> bool:
    """Gives an order on rank 0; returns whether another rank was told to stop."""
    message = torch.tensor([*order, 0])
    exchange.sum(message)
    return bool(message[3])


def receive(exchange: Exchange, stop: bool) -> Order:
    """Waits for the next order on another rank.

    Args:
        exchange: The connection to the other ranks.
        stop: Whether this rank was told to stop, which rank 0 then does.
    """
    message = torch.tensor([0, 0, 0, int(stop)])
    exchange.sum(message)
    command, first, second, _ = message.tolist()
    return Order(Command(command), first, second)
