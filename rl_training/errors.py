"""The errors that rl_training raises on purpose.

`UserError` and its kinds are of a user's making (settings, a damaged file, a server that is not there): a command line
shows them as a few lines and ends with exit code 2. `RunFailed` and its kinds end a run that had begun: exit code 1.
"""

from __future__ import annotations


class RLTrainingError(Exception):
    """Base of every error that this package raises on purpose."""


def foreign_cause(error: BaseException) -> BaseException | None:
    """Returns what was raised in a user's own code and led to `error`; None where all of its causes are ours."""
    cause = error.__cause__
    while isinstance(cause, RLTrainingError):
        cause = cause.__cause__
    return cause


class UserError(RLTrainingError):
    """Something that the user can put right; the message says what was got, what was expected and what to do."""


class ConfigError(UserError):
    """Settings that can't be used; the message lists every fault of the source at once."""


class EnvironmentRefused(UserError):
    """The environment or its spaces can't be trained on; found before training."""


class CheckpointError(UserError):
    """A checkpoint is damaged, partial, foreign, of a newer format, or does not fit the settings."""


class TrackingError(UserError):
    """The tracking server can't be reached, or refuses what it is given, before training has begun."""


class RunFailed(RLTrainingError):
    """A run that had begun can't go on; the last good checkpoint is kept."""


class EnvironmentFault(RunFailed):
    """The environment broke its contract, raised, or exited in mid-run; names its index and step."""


class NumericError(RunFailed):
    """A NaN or infinity in an observation, reward, loss, gradient or weight."""
