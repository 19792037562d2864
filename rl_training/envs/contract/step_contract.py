"""Checks the results of `reset` and `step`, and words each breach of contract.

Validation and training use the same checks, so a breach that appears only late in a run is reported in the same words.
`observation_contract` checks observations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.contract.call_watch import CallBlocked
from rl_training.errors import error_line, one_line

Severity = Literal["fatal", "warning"]

_BOOLS = (bool, np.bool_)
FEATURES_NAMED = 8
"""Number of features that are named for one kind of breach; the others are counted together."""


@dataclass(frozen=True)
class Breach:
    """One breach of the contract between an environment and a trainer."""

    severity: Severity
    """`fatal`: training is impossible. `warning`: training works around the breach, or may be misled by it."""
    code: str
    """A short stable name: `shape`, `dtype`, `not-finite`, ..."""
    message: str
    """The value received and the value expected."""
    feature: str | None = None
    """The number in an observation or action, if the breach concerns one."""
    value: str | None = None
    """The offending value."""
    subject: str = ""
    """The space, flag or part of an observation that the breach concerns, if not a feature."""


class ContractBroken(Exception):
    """A breach that training can't work around; raised and caught inside the package."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach.message)
        self.breach = breach


def not_finite(feature: str, value: float, what: str = "observation feature") -> Breach:
    """Returns the breach for a NaN or an infinity."""
    return Breach("fatal", "not-finite", f"{what} {feature} is {value}; it must be finite", feature, str(value))


def check_reward(reward: Any) -> list[Breach]:
    """Returns the breaches of a reward that is not one number, not finite, or a number inside an array."""
    if not _is_number(reward):
        one = isinstance(reward, np.ndarray) and reward.size == 1 and _is_number(reward.item())
        if not one:
            message = f"reward is {describe(reward)}; it must be one number"
            return [Breach("fatal", "reward-type", message, value=_shorten(reward))]
        message = f"reward is {describe(reward)}; it must be one number and is taken as such"
        return [Breach("warning", "reward-type", message, value=_shorten(reward)), *check_reward(reward.item())]
    if not float32_is_finite(float(reward)):
        return [Breach("fatal", "reward-not-finite", reward_not_finite(float(reward)), value=str(float(reward)))]
    return []


def float32_is_finite(values: Any) -> NDArray[np.bool_]:
    """Returns where numbers, of any shape, are finite in float32, the dtype used for learning."""
    with np.errstate(over="ignore"):
        finite: NDArray[np.bool_] = np.isfinite(np.asarray(values).astype(np.float32))
    return finite


def reward_not_finite(reward: float) -> str:
    """Returns the message for a reward that is not finite, or would not be in float32."""
    return f"reward is {reward}; it must be finite" + (" in float32 (up to 3.4e+38)" if np.isfinite(reward) else "")


def reward_as_float(reward: Any) -> float:
    """Returns a reward as a float; an array of one number is taken as that number.

    Raises:
        ContractBroken: The reward is not one number.
    """
    if isinstance(reward, float):
        return float(reward)
    if isinstance(reward, np.ndarray) and reward.size == 1:
        reward = reward.item()
    if not _is_number(reward):
        raise_if_broken(check_reward(reward))
    return float(reward)


def check_flag(name: str, flag: Any) -> list[Breach]:
    """Returns the breach of a `terminated` or `truncated` that is not a bool."""
    if isinstance(flag, _BOOLS) or (isinstance(flag, np.ndarray) and flag.dtype == bool and flag.size == 1):
        return []
    message = f"{name} is {describe(flag)}; it must be True or False"
    return [Breach("fatal", "flag-type", message, value=_shorten(flag), subject=name)]


def flag_as_bool(name: str, flag: Any) -> bool:
    """Returns `terminated` or `truncated` as a bool.

    Raises:
        ContractBroken: The flag is not a bool.
    """
    if not isinstance(flag, _BOOLS):
        raise_if_broken(check_flag(name, flag))
    return bool(flag)


def check_reset_result(result: Any) -> list[Breach]:
    """Returns the breach of a result of `reset` that is not a pair with an info dict."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return []
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else describe(result)
    if isinstance(result, tuple) and len(result) == 2:
        got = f"(observation, {type(result[1]).__name__})"
    return [Breach("fatal", "reset-result", f"reset returned {got}; it must return (observation, info dict)")]


def check_step_result(result: Any) -> list[Breach]:
    """Returns the breach of a result of `step` that is not five values with an info dict."""
    wanted = "it must return (observation, reward, terminated, truncated, info dict)"
    if not isinstance(result, tuple) or len(result) != 5:
        got = f"{len(result)} values" if isinstance(result, tuple) else describe(result)
        old = " (the signature of gym before 0.26)" if isinstance(result, tuple) and len(result) == 4 else ""
        return [Breach("fatal", "step-result", f"step returned {got}{old}; {wanted}")]
    if not isinstance(result[4], dict):
        return [Breach("fatal", "step-result", f"step returned {describe(result[4])} as info; {wanted}")]
    return []


def check_space_type(name: str, space: Any) -> list[Breach]:
    """Returns the breach of an `observation_space` or `action_space` that is not a Gymnasium space."""
    if isinstance(space, gym.Space):
        return []
    got = f"the class {space.__name__} itself" if isinstance(space, type) else describe(space)
    example = "Box(low, high, shape)" if name == "observation_space" else "Discrete(n)"
    message = f"{name} is {got}; it must be an instance of a gymnasium space, such as {example}"
    return [Breach("fatal", name.replace("_", "-"), message)]


def check_space_change(name: str, declared: gym.Space[Any], now: Any) -> list[Breach]:
    """Returns the breach of a space that has changed since the environment was made."""
    if now is declared or now == declared:
        return []
    message = f"{name} changed from {declared} to {now}; spaces must stay as they were"
    return [Breach("fatal", "space-changed", message, subject=name)]


def describe_error(during: str, error: BaseException) -> str:
    """Returns the message for an exception of the environment, or its `sys.exit`, on one line."""
    if isinstance(error, SystemExit):
        return f"{during} called sys.exit({one_line(error.code, repr)})"
    return f"{during} raised {error_line(error)}"


def failure(during: str, error: BaseException, detail: str = "") -> Breach:
    """Returns the breach for a call that raised, exited, or did not return, or whose result broke the contract."""
    if isinstance(error, ContractBroken):
        return error.breach
    if isinstance(error, CallBlocked):
        return Breach("fatal", "blocked", f"{during} {error}{detail}")
    return Breach("fatal", "raised", describe_error(during, error) + detail)


def raise_if_broken(breaches: Iterable[Breach]) -> None:
    """Raises the first fatal breach.

    Raises:
        ContractBroken: A breach is fatal.
    """
    for breach in breaches:
        if breach.severity == "fatal":
            raise ContractBroken(breach)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def describe(value: Any) -> str:
    """Describes a value by its type, and an array by its shape and dtype as well."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, np.generic):
        return f"a {value.dtype}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _shorten(value: Any) -> str:
    text = one_line(value, repr)
    return text if len(text) <= 60 else text[:57] + "..."
