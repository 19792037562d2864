"""The errors that rl_training raises on purpose.

`UserError` and its kinds are of a user's making (settings, a damaged file, a server that is not there): a command line
shows them as a few lines and ends with exit code 2. `RunFailed` and its kinds end a run that had begun: exit code 1.
"""

from __future__ import annotations

from collections.abc import Callable

USER_CODE_ERRORS = (Exception, SystemExit, GeneratorExit)
"""What a user's own code may raise that is no wish to end this program, as an interrupt is."""
MAX_CHARACTERS = 500
"""Of a user's own text that a message repeats; a traceback, where one is shown, has the whole of it."""


MAX_LINE_CHARACTERS = 10_000
"""Characters of a message about what was received."""


class RLTrainingError(Exception):
    """Base of every error that this package raises on purpose."""


def one_line(value: object, show: Callable[[object], str] = str) -> str:
    """Returns the text of a user's own object on one line, cut where it is long; never raises."""
    try:
        text = " ".join(show(value).split())
    except USER_CODE_ERRORS as error:
        return f"(no text: {show.__name__}() of it raised {type(error).__name__})"
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({len(text):,} characters)"


def printable(text: str) -> str:
    """Returns a text on one line, with control characters and the like as their escapes, cut where it is very long."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    return text if len(text) <= MAX_LINE_CHARACTERS else f"{text[:MAX_LINE_CHARACTERS]}... ({len(text):,} characters)"


def error_line(error: BaseException) -> str:
    """Returns the type and text of an exception that a user's own code raised, on one line."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def find_user_code_cause(error: BaseException) -> BaseException | None:
    """Returns what was raised in a user's own code and led to `error`; None where all of its causes are ours.

    What the system says of a disk is no code of the user's, and is in the error's own line.
    """
    if isinstance(error, CheckpointNotWritten):
        return None
    cause = error.__cause__
    while isinstance(cause, RLTrainingError):
        cause = cause.__cause__
    return cause


class UserError(RLTrainingError):
    """Something that the user can put right; the message says what was got, what was expected and what to do."""


class ConfigError(UserError):
    """Settings that can't be used; the message lists every fault of the source at once."""


class ModuleRefused(UserError):
    """A received run names a module that the user has not allowed, or that lies inside of what was received."""


class EnvironmentRefused(UserError):
    """The environment or its spaces can't be trained on; found before training."""


class ReceivedError(UserError):
    """Something received can't be used; the message, which may repeat a part of it, is one line for any terminal.

    Args:
        message: What is wrong.
        advice: What to do, on a line of its own; nothing received is in it.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(printable(message) + (f"\n{advice}" if advice else ""))


class CheckpointError(ReceivedError):
    """A checkpoint is damaged, partial, foreign, of a newer format, or does not fit the settings."""


class TrackingError(ReceivedError):
    """The tracking server can't be reached, or refuses what it is given, before training has begun."""


class NoChampion(UserError):
    """A registered model's champion is asked for, and it has none (any more)."""


class AlreadyTraining(UserError):
    """The job, or the run, is being trained by another process, which the message names."""


class RunFailed(RLTrainingError):
    """A run that had begun can't go on; the last good checkpoint is kept."""


class RunTakenOver(RunFailed):
    """Another process trains this run now, since this one was thought dead; it writes nothing more to it."""


class NoProgress(RunFailed):
    """Training broke again before it reached a new checkpoint: another try would break there too."""


class CheckpointNotWritten(RunFailed):
    """A checkpoint could not be written: the disk is full, read-only, or the like. Those that are there stay."""


class EnvironmentFault(RunFailed):
    """The environment broke its contract, raised, or exited in mid-run; names its index and step."""


class ReplayBufferFull(RunFailed):
    """The frames that a replay buffer stores once are more than it was given room for."""


class NumericError(RunFailed):
    """A NaN or infinity in an observation, reward, loss, gradient or weight."""
