"""The errors that rl_training raises on purpose.

`UserError` and its subclasses are for the user to fix (settings, a damaged file, a missing server): the command line
prints them as a few lines and ends with exit code 2. `RunFailed` and its subclasses end a run that had begun: exit
code 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

USER_CODE_ERRORS = (Exception, SystemExit, GeneratorExit)
"""The errors that a user's code may raise, apart from interrupts, which are meant to end this program."""
MAX_CHARACTERS = 500
"""The longest user text that a message repeats; a traceback shows all of it."""
MAX_LINE_CHARACTERS = 10_000
"""The longest message about something received."""


class RLTrainingError(Exception):
    """Base of every error that this package raises on purpose."""


def one_line(value: object, show: Callable[[object], str] = str) -> str:
    """Returns the text of a user's object on one line, truncated if it is long; never raises."""
    try:
        text = " ".join(show(value).split())
    except USER_CODE_ERRORS as error:
        return f"(no text: {show.__name__}() of it raised {type(error).__name__})"
    return _truncate(text, MAX_CHARACTERS)


def printable(text: str) -> str:
    """Returns `text` on one line, with control characters escaped, truncated if it is very long."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    return _truncate(text, MAX_LINE_CHARACTERS)


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def error_line(error: BaseException) -> str:
    """Returns the type and text of an exception from a user's code on one line."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_fault(fault: ErrorDetails, name: str = "") -> str:
    """Returns what pydantic found wrong with a value on one line, in the words of our own messages.

    Args:
        fault: One of `ValidationError.errors()`.
        name: The name of the value that was checked, which the path within it follows.
    """
    where = ".".join([*([name] if name else []), *map(one_line, fault["loc"])])
    if fault["type"] == "missing":
        return f"{where}: is required and missing"
    got = f"got {one_line(fault['input'], repr)}, {describe_expectation(one_line(fault['msg']))}"
    return f"{where}: {got}" if where else got


def describe_expectation(message: str) -> str:
    """Returns what a message of pydantic says was expected, in the words of our own messages."""
    message = re.sub(r" after validation, not \w+$", "", message.removeprefix("Value error, "))
    message = re.sub(r" or ((an )?instance of \w+|object to extract fields from)$", "", message)
    return re.sub(
        r"^(Input|Value|String|Tuple|List|Dictionary) should (be |have |match )?",
        "expected ",
        message.replace("Extra inputs are not permitted", "expected no such key"),
    )


def find_user_code_cause(error: BaseException) -> BaseException | None:
    """Returns the exception from a user's own code that led to `error`, or None if this package raised every cause.

    An error of the disk is not from the user's code, and `CheckpointNotWritten` already shows it.
    """
    if isinstance(error, CheckpointNotWritten):
        return None
    cause = error.__cause__
    while isinstance(cause, RLTrainingError):
        cause = cause.__cause__
    return cause


class UserError(RLTrainingError):
    """A problem that the user can fix; the message says what was got, what was expected and what to do."""


class ConfigError(UserError):
    """Invalid settings; the message lists every fault of the source at once."""


class ModuleRefused(UserError):
    """A received run names a module that the user has not allowed, or that lies inside the received files."""


class EnvironmentRefused(UserError):
    """The environment or its spaces can't be used for training; found before training begins."""


class ReceivedError(UserError):
    """Something received can't be used; the message, which may quote it, is one line that is safe to print.

    Args:
        message: What is wrong.
        advice: What to do, on a line of its own; it quotes nothing received.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(printable(message) + (f"\n{advice}" if advice else ""))


class CheckpointError(ReceivedError):
    """A checkpoint is damaged, partial, foreign, of a newer format, or does not fit the settings."""


class TrackingError(ReceivedError):
    """Before training begins, the tracking server can't be reached or refuses a request."""


class NoChampion(UserError):
    """A registered model has no champion, or no longer has one."""


class AlreadyTraining(UserError):
    """Another process, which the message names, is training the job or the run."""


class RunFailed(RLTrainingError):
    """A run that had begun can't continue; its last good checkpoint is kept."""


class RunTakenOver(RunFailed):
    """Another process trains this run now because this process seemed dead; this process writes nothing more to it."""


class NoProgress(RunFailed):
    """Training failed again before it reached a new checkpoint, so another try would fail there too."""


class CheckpointNotWritten(RunFailed):
    """A checkpoint can't be written, for example because the disk is full or read-only; existing ones are kept."""


class EnvironmentFault(RunFailed):
    """The environment broke its contract, raised, or exited during the run; the message names its index and step."""


class RankFailed(RunFailed):
    """Another process of a run with several ranks has failed or died."""


class ReplayBufferFull(RunFailed):
    """A replay buffer that stores each frame once has more frames than it has room for."""


class NumericError(RunFailed):
    """A NaN or infinity in an observation, reward, loss, gradient or weight."""
