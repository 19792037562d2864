"""Ranks that are threads of one process, which exchange arrays through its memory."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch

from tests.waiting import LIMIT

T = TypeVar("T")


class ThreadExchange:
    """One rank's connection to the others; see `rl_training.distributed.share.Exchange`."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.ranks, self.calls = rank, len(slots), 0
        self._slots, self._barrier = slots, barrier

    def sum(self, vector: torch.Tensor) -> None:
        vector.copy_(torch.from_numpy(self.gather(vector.numpy()).sum(axis=0)))

    def gather(self, array: np.ndarray) -> np.ndarray:
        self.calls += 1
        self._slots[self.rank] = array.copy()
        self._barrier.wait(LIMIT)
        everyone = np.stack(self._slots)
        self._barrier.wait(LIMIT)
        return everyone


def on_ranks(count: int, work: Callable[[ThreadExchange], T]) -> Sequence[T | Exception]:
    """Returns the result or the error of `work` on each rank."""
    slots, barrier = [None] * count, threading.Barrier(count)

    def attempt(rank: int) -> T | Exception:
        try:
            return work(ThreadExchange(rank, slots, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(attempt, range(count)))
