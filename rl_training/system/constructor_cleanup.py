"""Closes the processes, threads and files that a constructor has opened if the constructor fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, TypeVar

InitT = TypeVar("InitT", bound=Callable[..., None])
ProcessT = TypeVar("ProcessT", bound="subprocess.Popen[Any]")


def close_on_error(init: InitT) -> InitT:
    """Makes a constructor close `self._opened`, an `ExitStack`, if it raises.

    Each resource is pushed onto the stack in the line that opens it:
    `self.x = self._opened.enter_context(closing(X()))`.
    """

    @wraps(init)
    def guarded(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except BaseException:
            opened = vars(self).get("_opened")
            if isinstance(opened, ExitStack):
                opened.close()
            raise

    return guarded  # type: ignore[return-value]


def kill_on_close(opened: ExitStack, process: ProcessT) -> ProcessT:
    """Returns `process` after registering it with `opened`, which kills it and closes its pipes when it is closed.

    Its stderr is left to the thread that reads it.
    """
    opened.callback(_end, process)
    return process


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
