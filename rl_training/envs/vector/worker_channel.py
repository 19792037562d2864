"""A channel between two processes: messages, and one-byte bells that announce data in shared memory.

The channel is two pipes, which carry a byte in a third of the time that a socket takes. The system calls also order
memory: what one side wrote before it rang is visible to the other side once it hears the bell, on every kind of CPU.
"""

from __future__ import annotations

import os
import pickle
import select
import time
from multiprocessing.connection import Connection
from typing import Any

STEP, LOOK, BEGIN, DONE = b"s", b"l", b"b", b"d"
"""Bells: step every environment with `StepRows.action`; do so and reply with the infos; begin the episodes marked in
`StepRows.ended`; done."""

CLOSE_SECONDS = 5.0
"""Time that an environment has to finish its step and close after the parent has closed its end of the channel."""
SPIN_SECONDS = 0.0005
"""Time that a spinning side polls before it sleeps, because waking up takes 50 µs or more."""

_MESSAGE = b"m"


class Channel:
    """One end of the channel; it owns the two descriptors and closes them.

    Args:
        reading: Descriptor of the pipe from the other side.
        writing: Descriptor of the pipe to the other side.
        spins: Whether a wait begins with `SPIN_SECONDS` of polling, which pays off if each process has its own CPU.
    """

    def __init__(self, reading: int, writing: int, *, spins: bool) -> None:
        self._reading, self._writing = reading, writing
        self._reader, self._writer = Connection(reading, writable=False), Connection(writing, readable=False)
        self._spin_seconds = SPIN_SECONDS if spins else 0.0
        self._arrival = select.poll()
        self._arrival.register(reading, select.POLLIN)

    def ring(self, bell: bytes) -> None:
        """Announces by one byte, other than `m`, that shared memory holds data for the other side."""
        os.write(self._writing, bell)

    def send(self, message: Any) -> None:
        """Sends an object.

        Raises:
            PicklingError: The object can't be pickled, and nothing was sent; for some objects, Python raises a
                TypeError or an AttributeError instead.
        """
        pickled = pickle.dumps(message)
        os.write(self._writing, _MESSAGE)
        self._writer.send_bytes(pickled)

    def receive(self, seconds: float | None = None) -> Any:
        """Returns the next message, or the byte of a bell.

        Args:
            seconds: Time limit in seconds; None waits forever.

        Raises:
            EOFError: The other side has closed its end.
            TimeoutError: Nothing arrived in time.
        """
        if self._spin_seconds:
            end = time.monotonic() + self._spin_seconds
            while not self._arrival.poll(0) and time.monotonic() < end:
                os.sched_yield()
        if seconds is not None and not self._arrival.poll(1000 * seconds):
            raise TimeoutError(f"gave no answer within {seconds:g} s")
        kind = os.read(self._reading, 1)
        if not kind:
            raise EOFError
        return self._reader.recv() if kind == _MESSAGE else kind

    def wait_for_end(self) -> None:
        """Blocks until the other side has closed its end or died, without reading anything."""
        hung_up = select.poll()
        hung_up.register(self._reading, 0)
        hung_up.poll()

    def close(self) -> None:
        """Closes this end."""
        self._reader.close()
        self._writer.close()
