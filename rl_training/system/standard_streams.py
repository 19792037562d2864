"""Standard streams whose loss ends nothing: a closed pipe, a terminal that is gone, a full disk.

A training run outlives its display. Each program of ours calls `keep_standard_streams` first. Text that can't be
written is dropped; so `print`, loggers, warnings, progress bars and environments that print can't fail the run. Once
the reader of a stream is gone, the stream leads to the null device, for child processes and compiled code too.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

READER_GONE = frozenset({errno.EPIPE, errno.EIO})
"""What a write fails with once the reader of a pipe, or a terminal, is gone."""


class LastingStream(io.FileIO):
    """A standard stream that drops what it can't write.

    Args:
        descriptor: 1 or 2; it stays open.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: Any) -> int:
        """Writes as many bytes as fit, or drops all of them; raises nothing."""
        try:
            while (written := super().write(data)) is None:  # another program has made the stream non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno in READER_GONE:
                open_null(self.fileno())
            return memoryview(data).nbytes


def keep_standard_streams() -> None:
    """Opens the standard streams that are closed on the null device, and makes stdout and stderr lasting ones.

    A descriptor of 0, 1 or 2 that stays closed would go to the next file or socket that is opened, and what is printed
    would be written there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            open_null(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _lasting(sys.stdout, 1)
    sys.stderr = _lasting(sys.stderr, 2)


def open_null(descriptor: int) -> None:
    """Makes a descriptor lead to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)


def _lasting(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """Returns a stream in place of Python's own, which is None where the descriptor was closed."""
    if stream is not None:
        stream.flush()
    encoding = stream.encoding if stream is not None else "utf-8"
    raw = LastingStream(descriptor)
    raw.name = "<stdout>" if descriptor == 1 else "<stderr>"  # as Python names them
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=descriptor == 2 or raw.isatty(),
    )
