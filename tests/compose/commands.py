"""Commands on this machine, and the lines that report progress."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
STARTED = time.monotonic()
Value = TypeVar("Value")


class TestFailed(Exception):
    """Something is not as it must be; the message says what."""


def say(text: str) -> None:
    """Prints a line with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.0f} s] {text}", flush=True)


@contextmanager
def phase(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Says that a phase begins and ends, and notes how long it took."""
    say(f"{name} ...")
    began = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - began, 1)
    say(f"{name}: done in {seconds[name]:.0f} s")


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout: float = 3600.0,
    check: bool = True,
    text: str | None = None,
) -> str:
    """Runs a command and returns its standard output.

    Raises:
        TestFailed: It has failed, and `check` is true; the message has the end of its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        raise TestFailed(
            f"{' '.join(words)[:300]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}"
        )
    return done.stdout


def eventually(question: Callable[[], Value], seconds: float, what: str) -> Value:
    """Asks until the answer is true; returns it.

    Raises:
        TestFailed: It never was.
    """
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise TestFailed(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)
    return answer


def require(condition: object, what: str) -> None:
    """Raises `TestFailed` with this text unless the condition holds."""
    if not condition:
        raise TestFailed(what)
