"""A second thread, for computations that are large enough to gain from it.

The threads of numpy's linear algebra library split each product and wait for each other in a busy loop. Small products
become ten times slower, and all products a hundred times slower if another process uses a CPU. So that library is
limited to one thread. Instead, independent functions run in two threads, such as the passes of policy and value
function, the two halves of a batch in one network, or the two products in a layer's backward pass. Each function
computes the same result, to the last bit, as it would in one thread.

A function whose result is needed later can be begun ahead, such as the target values of DQN's next batches.

An update of SAC is a chain of large products and passes over memory, with few independent parts. There torch's own
threads can split each operation, which pays off where torch computes the products (`is_quicker_in_torch`). They too
wait in a busy loop. So `in_quickest_way` measures whether they, a second thread or neither is quickest.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

ResultT = TypeVar("ResultT")

PAYS = 10_000_000
"""Number of multiplications above which a second thread pays off: a product of 150 rows by 256 x 256."""


TRY_EVERY = 128
"""A `Quickest` takes two of this number of computations each slower way, so that it notices when that has changed."""


class Way(Enum):
    """A way to compute; all of them give the same bits."""

    TORCH = "torch splits each of its operations over all threads"
    HANDED_OVER = "a second thread computes independent parts"
    ALONE = "one thread computes everything"


class Quickest:
    """Chooses, again and again, the quickest way of a computation.

    A computation in two threads takes a third less time than in one on idle CPUs, and several times as long if another
    process uses one of them. That changes while a training runs.
    """

    def __init__(self) -> None:
        self._seconds: dict[Way, deque[float]] = {way: deque(maxlen=4) for way in Way}
        self._count = 0

    def choose(self) -> Way:
        """Returns the way of the next computation."""
        self._count += 1
        for way, seconds in self._seconds.items():
            if len(seconds) < 2:
                return way
        # The least of a few durations, because a single computation may be interrupted.
        quickest, *others = sorted(Way, key=lambda way: min(self._seconds[way]))
        turn = self._count % TRY_EVERY // 2
        return others[turn] if turn < len(others) else quickest

    def record(self, way: Way, seconds: float) -> None:
        """Records the duration of a computation."""
        self._seconds[way].append(seconds)


class Helper:
    """A thread that calls one function at a time; two locks hand it over in a third of the time of an executor."""

    def __init__(self) -> None:
        self._asked, self._done = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._done.acquire()
        self._task: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, task: Callable[[], object] | None) -> None:
        """Makes the thread call a function; None ends the thread."""
        self._task = task
        self._asked.release()

    @property
    def has_finished(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._done.locked()

    def wait(self) -> BaseException | None:
        """Waits until the function has finished, and returns the exception that it raised, or None."""
        self._done.acquire()
        return self._error

    def end(self) -> None:
        """Ends the thread."""
        self.ask(None)
        self._thread.join()

    def _serve(self) -> None:
        # These settings are per thread. An update checks its measurements for numbers that are not finite.
        np.seterr(all="ignore")
        torch.set_num_threads(1)
        while True:
            self._asked.acquire()
            if self._task is None:
                return
            self._error = None
            try:
                self._task()
            except BaseException as error:
                self._error = error
            self._done.release()


class Ahead(Generic[ResultT]):
    """A function that was begun, or that is called as soon as its result is wanted; see `Threads.begin`."""

    def __init__(self, task: Callable[[], ResultT]) -> None:
        self._task = task
        self._results: list[ResultT] = []
        self._error: BaseException | None = None
        self.helper: Helper | None = None
        """The thread that may still be calling the function."""

    def run(self) -> None:
        """Calls the function."""
        self._results.append(self._task())

    def settle(self) -> None:
        """Waits until the function has ended, if it was begun."""
        if self.helper is not None:
            self._error, self.helper = self.helper.wait(), None

    def result(self) -> ResultT:
        """Returns the result of the function, or raises its error."""
        self.settle()
        if self._error is not None:
            raise self._error
        if not self._results:
            self.run()
        return self._results[0]


class Threads:
    """The threads of this process for computations: one, except for the thread inside `using`."""

    _ahead: Ahead[Any]
    """The function that was begun last."""

    def __init__(self) -> None:
        self._helper: Helper | None = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    @contextmanager
    def using(self, count: int) -> Iterator[None]:
        """Uses `count` threads within the block: all of them for torch's convolutions, up to two for MLPs.

        Other threads of the process, for example one that evaluates a policy, compute in one thread meanwhile.
        """
        with ExitStack() as before:
            before.callback(torch.set_num_threads, torch.get_num_threads())
            before.callback(self._set, self._count, self._helper, self._owner)
            before.enter_context(threadpool_limits(limits=1, user_api="blas"))
            torch.set_num_threads(1)
            helper = Helper() if count > 1 else None
            if helper is not None:
                before.callback(helper.end)
            self._set(count, helper, threading.get_ident())
            yield

    def splits(self, multiplications: int) -> bool:
        """Returns whether two functions with this many multiplications each would run in parallel now."""
        return multiplications >= PAYS and self.is_free

    def call(self, multiplications: int, first: Callable[[], object], *others: Callable[[], object]) -> None:
        """Calls independent functions; the second one runs in parallel with the others if that pays off.

        If one of the functions uses `call` itself, its functions run in its own thread.

        Args:
            multiplications: Number of multiplications in the largest product of each function.
            first: The first function.
            *others: The other functions.
        """
        if self._helper is None or not others or not self.splits(multiplications):
            for task in (first, *others):
                task()
            return
        second, *rest = others
        self._busy = True
        self._helper.ask(second)
        try:
            for task in (first, *rest):
                task()
        finally:
            error = self._helper.wait()
            self._busy = False
        if error is not None:
            raise error

    @property
    def is_free(self) -> bool:
        """Whether a second thread could call a function for this one now."""
        if not self._can_help() or self._busy:
            return False
        if self._ahead.helper is not None and self._ahead.helper.has_finished:
            self._ahead.settle()
        return self._ahead.helper is None

    def begin(self, task: Callable[[], ResultT]) -> Ahead[ResultT]:
        """Begins a function in the second thread; if none is free, it is called when its result is wanted.

        The caller must ask for the result, or `settle`, before `using` ends and before it changes what the function
        reads.
        """
        ahead = Ahead(task)
        if self._helper is not None and self.is_free:
            self._ahead, ahead.helper = ahead, self._helper
            self._helper.ask(ahead.run)
        return ahead

    @contextmanager
    def in_quickest_way(self, quickest: Quickest) -> Iterator[None]:
        """Computes within the block in the way that has been the quickest for blocks with the same `Quickest`."""
        if not self._can_help():
            yield
            return
        way, began = quickest.choose(), time.perf_counter()
        with self._in_way(way):
            yield
        quickest.record(way, time.perf_counter() - began)

    @contextmanager
    def in_torch(self) -> Iterator[None]:
        """Lets torch use all threads within the block, as for convolutions, and hands nothing over there."""
        if not self._can_help():
            yield
            return
        with self._in_way(Way.TORCH):
            yield

    @contextmanager
    def _in_way(self, way: Way) -> Iterator[None]:
        before, was_busy = torch.get_num_threads(), self._busy
        torch.set_num_threads(self._count if way is Way.TORCH else 1)
        self._busy = was_busy or way is not Way.HANDED_OVER
        try:
            yield
        finally:
            torch.set_num_threads(before)
            self._busy = was_busy

    def _can_help(self) -> bool:
        return self._helper is not None and threading.get_ident() == self._owner

    def _set(self, count: int, helper: Helper | None, owner: int) -> None:
        self._count, self._helper, self._owner = count, helper, owner

    def _reset(self) -> None:
        """Returns to one thread; a forked process needs this because it has only the thread that forked."""
        self._count, self._owner, self._busy, self._helper = 1, 0, False, None
        self._ahead = Ahead(int)


THREADS = Threads()
