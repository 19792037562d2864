"""What a process that steps a group of environments for a trainer replies to it."""

from __future__ import annotations

import traceback
from typing import Any

from rl_training.envs.contract.contract_guard import RaisedByEnvironment
from rl_training.envs.episodes.sent_infos import copy_plain_info
from rl_training.envs.vector.env_group import EnvGroup
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, UserError, error_line, find_user_code_cause

Reply = tuple[str, Any]
"""A reply for one environment: `("ok", value)` or `(error kind, (text, traceback))`; the traceback is None if no
environment raised. The kinds are `refused` (whose text stands alone), `fault`, `failed` and `gone`."""


def answer(group: EnvGroup, command: str, call: tuple[Any, ...]) -> Reply:
    """Calls a method of the group; `call` holds the index of the environment and the other arguments."""
    kind, value = attempt(getattr(group, command), *call)
    if kind == "ok" and command == "call" and call[1] in ("reset", "step"):
        value = (*value[:-1], copy_plain_info(value[-1])[0])  # infos can't always be pickled
    return kind, value


def attempt(function: Any, *arguments: Any) -> Reply:
    """Calls a function, and returns its value or error as a reply."""
    try:
        return "ok", function(*arguments)
    except UserError as error:
        return "refused", str(error)
    except EnvironmentFault as error:
        return "fault", (str(error), _format_traceback(find_user_code_cause(error)))
    except USER_CODE_ERRORS as error:
        return "failed", (error_line(error), _format_traceback(error))


def _format_traceback(error: BaseException | None) -> str | None:
    if isinstance(error, RaisedByEnvironment):
        return str(error).lstrip()
    return "".join(traceback.format_exception(error)) if error is not None else None
