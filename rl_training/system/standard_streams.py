"""Keeps a program running when its standard streams fail: a closed pipe, a closed terminal, a full disk.

A training run outlives its display. Every program of this package calls `keep_standard_streams` first. Text that can't
be written is dropped, so `print`, loggers, warnings, progress bars and environments that print can't fail the run. Once
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
"""The errors of a write whose pipe has lost its reader, or whose terminal was closed."""


class LastingStream(io.FileIO):
    """A standard stream that drops what it can't write.

    Args:
        descriptor: 1 or 2; closing the stream leaves it open.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: Any) -> int:
        """Writes as many bytes as fit, or drops all of them; never raises."""
        try:
            while (written := super().write(data)) is None:  # another program has made the stream non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno in READER_GONE:
                open_null(self.fileno())
            return memoryview(data).nbytes


def keep_standard_streams() -> None:
    """Replaces stdout and stderr by `LastingStream`, and opens closed standard streams on the null device.

    If one of the descriptors 0, 1 and 2 stayed closed, the next file or socket to be opened would get it, and printed
    text would go there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            open_null(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _replace_stream(sys.stdout, 1)
    sys.stderr = _replace_stream(sys.stderr, 2)


def open_null(descriptor: int) -> None:
    """Makes a descriptor lead to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)


def _replace_stream(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """Returns a replacement for one of Python's streams, which is None if the descriptor was closed."""
    if stream is not None:
        stream.flush()
    encoding = stream.encoding if stream is not None else "utf-8"
    raw = LastingStream(descriptor)
    raw.name = "<stdout>" if descriptor == 1 else "<stderr>"  # the names that Python gives them
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=descriptor == 2 or raw.isatty(),
    )
