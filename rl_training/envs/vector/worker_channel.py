"""A line between two processes: messages, and bells of one byte for what is said in memory that both share.

Two pipes, which carry a byte in a third of the time that a socket takes. The system calls order memory too: what one
side wrote before it rang, the other reads after it heard that, on every kind of CPU.
"""

from __future__ import annotations

import os
import pickle
import select
import time
from multiprocessing.connection import Connection
from typing import Any

SPIN_SECONDS = 0.0005
"""How long a side that may spin looks for an answer again and again before it sleeps: waking takes 50 µs and more."""

_MESSAGE = b"m"


class Channel:
    """One end of the line, which closes the two descriptors that it is given.

    Args:
        reading: Descriptor of the pipe that brings what the other side says.
        writing: Descriptor of the pipe to the other side.
        spins: Whether waiting begins with `SPIN_SECONDS` of looking, which pays where each process has a CPU.
    """

    def __init__(self, reading: int, writing: int, *, spins: bool) -> None:
        self._reading, self._writing = reading, writing
        self._reader, self._writer = Connection(reading, writable=False), Connection(writing, readable=False)
        self._spin_seconds = SPIN_SECONDS if spins else 0.0
        self._arrival = select.poll()
        self._arrival.register(reading, select.POLLIN)

    def ring(self, bell: bytes) -> None:
        """Tells the other side by one byte, not `m`, what shared memory holds for it."""
        os.write(self._writing, bell)

    def send(self, message: Any) -> None:
        """Sends an object.

        Raises:
            PicklingError: Or a TypeError or an AttributeError: it can't be sent between processes, and nothing was.
        """
        pickled = pickle.dumps(message)
        os.write(self._writing, _MESSAGE)
        self._writer.send_bytes(pickled)

    def receive(self, seconds: float | None = None) -> Any:
        """Returns the next message, or the byte of a bell.

        Args:
            seconds: How long to wait; None waits for ever.

        Raises:
            EOFError: The other side has closed its end.
            TimeoutError: Nothing came in time.
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
        """Returns once the other side has closed its end, by whatever ended it; reads nothing."""
        hung_up = select.poll()
        hung_up.register(self._reading, 0)
        hung_up.poll()

    def close(self) -> None:
        """Hangs up."""
        self._reader.close()
        self._writer.close()
