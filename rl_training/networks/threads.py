"""Several threads, for what is large enough to gain by them.

There are two ways; a process takes one of them, since they are in each other's way. *Side by side*: functions that do
not need each other are called at the same time, and compute to the last bit what they would alone. *In products*: the
library of numpy divides each product. Its threads wait in a busy loop, so with small products, or where somebody else
wants a CPU, everything takes many times longer; but for one network and few rows nothing else gains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

TASK_PAYS = 10_000_000
"""Multiplications from which on a function gains by a thread of its own: those of 150 rows by 256 x 256."""
PRODUCT_PAYS = 4_000_000
"""Multiplications from which on a product gains by being divided: those of 61 rows by 256 x 256."""


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
    """The threads that compute in this process: one, but within `using`."""

    def __init__(self) -> None:
        self._count, self._in_products = 1, False
        self._helpers: list[Helper] = []
        self._busy = False
        self._products = ThreadpoolController().select(user_api="blas")

    @contextmanager
    def using(self, count: int, *, in_products: bool = False) -> Iterator[None]:
        """Has `count` threads within the block, side by side or inside of products."""
        with ExitStack() as before:
            before.callback(torch.set_num_threads, torch.get_num_threads())
            before.callback(self._set, self._count, self._in_products, self._helpers)
            before.enter_context(self._products.limit(limits=1))
            torch.set_num_threads(1)
            helpers = [Helper() for _ in range(count - 1)] if not in_products else []
            for helper in helpers:
                before.callback(helper.end)
            self._set(count, in_products and count > 1, helpers)
            yield

    def go_side_by_side(self, multiplications: int) -> bool:
        """Returns whether functions that make so many each would have a thread each now."""
        return bool(self._helpers) and not self._busy and multiplications >= TASK_PAYS

    def call(self, multiplications: int, *tasks: Callable[[], object]) -> None:
        """Calls functions that do not need each other, with several threads where that pays.

        What one of them wants to do side by side itself is done one after the other.

        Args:
            multiplications: How many each makes in its largest product.
            *tasks: The functions.
        """
        if len(tasks) > 1 and self.go_side_by_side(multiplications):
            self._call_side_by_side(*tasks)
        elif self._in_products and not self._busy and multiplications >= PRODUCT_PAYS:
            self._call_with_divided_products(*tasks)
        else:
            for task in tasks:
                task()

    @contextmanager
    def in_torch(self) -> Iterator[None]:
        """Gives all threads to torch within the block, whose convolutions are always large."""
        torch.set_num_threads(self._count)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def _call_side_by_side(self, first: Callable[[], object], *others: Callable[[], object]) -> None:
        self._busy = True
        helped = list(zip(self._helpers, others, strict=False))
        for helper, task in helped:
            helper.ask(task)
        try:
            for task in (first, *others[len(helped) :]):
                task()
        finally:
            errors = [helper.wait() for helper, _ in helped]
            self._busy = False
        for error in errors:
            if error is not None:
                raise error

    def _call_with_divided_products(self, *tasks: Callable[[], object]) -> None:
        self._busy = True
        self._divide_products(self._count)
        try:
            for task in tasks:
                task()
        finally:
            self._divide_products(1)
            self._busy = False

    def _divide_products(self, count: int) -> None:
        for library in self._products.lib_controllers:
            library.set_num_threads(count)

    def _set(self, count: int, in_products: bool, helpers: list[Helper]) -> None:
        self._count, self._in_products, self._helpers = count, in_products, helpers


THREADS = Threads()
