"""A second thread, for what is large enough to gain by one.

The threads of numpy's own library divide each product and wait for each other in a busy loop: small products take ten
times longer by them, and all products a hundred times wherever somebody else wants a CPU. So that library has one
thread. What has two are functions that do not need each other, such as the passes of policy and value function, of twin
critics, and the two products of a layer's backward pass: each computes to the last bit what it would alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

PAYS = 10_000_000
"""Multiplications from which on a function gains by a thread of its own: those of 150 rows by 256 x 256."""


class Helper:
    """A thread that calls one function at a time. Two locks hand it over in a third of the time an executor takes."""

    def __init__(self) -> None:
        self._asked, self._done = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._done.acquire()
        self._task: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, task: Callable[[], object] | None) -> None:
        """Has a function called; None ends the thread."""
        self._task = task
        self._asked.release()

    def wait(self) -> BaseException | None:
        """Waits until the function has returned; returns what it raised."""
        self._done.acquire()
        return self._error

    def end(self) -> None:
        """Ends the thread."""
        self.ask(None)
        self._thread.join()

    def _serve(self) -> None:
        # Both are a thread's own. What is not finite is found in an update's measurements.
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


class Threads:
    """The threads that compute in this process: one, but for the thread that is within `using`."""

    def __init__(self) -> None:
        self._helper: Helper | None = None
        self._alone()
        os.register_at_fork(after_in_child=self._alone)

    @contextmanager
    def using(self, count: int) -> Iterator[None]:
        """Has `count` threads within the block: torch for convolutions all of them, networks up to two.

        Other threads, which evaluate a policy for example, compute alone meanwhile.
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
        """Returns whether two functions that make so many each would be called at the same time now."""
        return self._helps() and not self._busy and multiplications >= PAYS

    def call(self, multiplications: int, first: Callable[[], object], *others: Callable[[], object]) -> None:
        """Calls functions that do not need each other, the second at the same time as the others where that pays.

        What one of them hands to `call` itself is called in its own thread.

        Args:
            multiplications: How many each makes in its largest product.
            first: A function.
            *others: More of them.
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

    @contextmanager
    def in_torch(self) -> Iterator[None]:
        """Gives all threads to torch within the block, whose convolutions are always large."""
        if not self._helps():
            yield
            return
        torch.set_num_threads(self._count)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def _helps(self) -> bool:
        return self._helper is not None and threading.get_ident() == self._owner

    def _set(self, count: int, helper: Helper | None, owner: int) -> None:
        self._count, self._helper, self._owner = count, helper, owner

    def _alone(self) -> None:
        """Also in a forked process, which has no thread but the one that forked."""
        self._count, self._owner, self._busy, self._helper = 1, 0, False, None


THREADS = Threads()
