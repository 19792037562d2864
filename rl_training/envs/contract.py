"""What an environment promises by its spaces, and the words for each way of breaking it.

Validation and the run itself use the same checks, so that what shows only late is reported in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.leaves import Leaf, leaves, same_keys

Severity = Literal["fatal", "warning"]


@dataclass(frozen=True)
class Breach:
    """One broken promise."""

    severity: Severity
    """`fatal`: can't be trained on. `warning`: training works around it, or may be misled by it."""
    code: str
    """A short stable name: `shape`, `dtype`, `not-finite`, ..."""
    message: str
    """What was got and what was expected."""
    feature: str | None = None
    """Which number of an observation or action, where it is one."""
    value: str | None = None
    """The value at fault."""


class ContractBroken(Exception):
    """Raised inside the package where a breach can't be worked around."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach.message)
        self.breach = breach


def as_declared(space: gym.Space[Any], observation: Any) -> Any:
    """Returns a copy of an observation in the declared shapes and dtypes.

    Copied, since an environment may hand out the same array each time and change it in place.

    Raises:
        ContractBroken: The observation does not fit the space and can't be cast to it without loss of meaning.
    """
    if isinstance(space, spaces.Box):
        if type(observation) is np.ndarray and observation.dtype == space.dtype and observation.shape == space.shape:
            return observation.copy()
        return _leaf_as_declared(Leaf((), space), observation)
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _leaf_as_declared(Leaf((), space), observation)
    raise_if_broken(_structure_breaches(space, observation, ()))
    return _nested(space, observation, ())


def observation_breaches(space: gym.Space[Any], observation: Any) -> list[Breach]:
    """Returns every way in which an observation differs from its space; of many like numbers the first is named."""
    breaches = list(_structure_breaches(space, observation, ()))
    if breaches:
        return breaches
    return [breach for leaf in leaves(space) for breach in _leaf_breaches(leaf, leaf.pick(observation))]


def observation_is_array(part: Any) -> bool:
    """Returns whether a part of an observation is numbers in an array, or in what makes one."""
    try:
        return np.asarray(part).dtype.kind in "biuf"
    except ValueError:  # lists of unequal length
        return False


def not_finite(feature: str, value: float, what: str = "observation feature") -> Breach:
    """Returns the breach of a NaN or an infinity."""
    return Breach("fatal", "not-finite", f"{what} {feature} is {value}; it must be finite", feature, str(value))


def reward_breaches(reward: Any) -> list[Breach]:
    """Returns what is wrong with a reward: not one number, not finite, or a number in an array."""
    if not _is_number(reward):
        one = isinstance(reward, np.ndarray) and reward.size == 1 and _is_number(reward.item())
        if not one:
            message = f"reward is {_describe(reward)}; it must be one number"
            return [Breach("fatal", "reward-type", message, value=_short(reward))]
        message = f"reward is {_describe(reward)}; it must be one number and is taken as such"
        return [Breach("warning", "reward-type", message, value=_short(reward)), *reward_breaches(reward.item())]
    if not np.isfinite(float(reward)):
        message = f"reward is {float(reward)}; it must be finite"
        return [Breach("fatal", "reward-not-finite", message, value=str(float(reward)))]
    return []


def reward_as_float(reward: Any) -> float:
    """Returns a reward as a float; an array of one number is taken as that number.

    Raises:
        ContractBroken: It is not one number.
    """
    if type(reward) is float:
        return reward
    if isinstance(reward, np.ndarray) and reward.size == 1:
        reward = reward.item()
    if not _is_number(reward):
        raise_if_broken(reward_breaches(reward))
    return float(reward)


def flag_breaches(name: str, flag: Any) -> list[Breach]:
    """Returns what is wrong with `terminated` or `truncated`."""
    if isinstance(flag, bool | np.bool_) or (isinstance(flag, np.ndarray) and flag.dtype == bool and flag.size == 1):
        return []
    return [Breach("fatal", "flag-type", f"{name} is {_describe(flag)}; it must be True or False", value=_short(flag))]


def flag_as_bool(name: str, flag: Any) -> bool:
    """Returns `terminated` or `truncated` as a bool.

    Raises:
        ContractBroken: It is not one.
    """
    if flag is True or flag is False:
        return bool(flag)
    raise_if_broken(flag_breaches(name, flag))
    return bool(flag)


def reset_result_breaches(result: Any) -> list[Breach]:
    """Returns what is wrong with what `reset` returned, before its parts are looked at."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return []
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else _describe(result)
    if isinstance(result, tuple) and len(result) == 2:
        got = f"(observation, {type(result[1]).__name__})"
    return [Breach("fatal", "reset-result", f"reset returned {got}; it must return (observation, info dict)")]


def step_result_breaches(result: Any) -> list[Breach]:
    """Returns what is wrong with what `step` returned, before its parts are looked at."""
    wanted = "it must return (observation, reward, terminated, truncated, info dict)"
    if not isinstance(result, tuple) or len(result) != 5:
        got = f"{len(result)} values" if isinstance(result, tuple) else _describe(result)
        old = " (the signature of gym before 0.26)" if isinstance(result, tuple) and len(result) == 4 else ""
        return [Breach("fatal", "step-result", f"step returned {got}{old}; {wanted}")]
    if not isinstance(result[4], dict):
        return [Breach("fatal", "step-result", f"step returned {_describe(result[4])} as info; {wanted}")]
    return []


def space_type_breaches(name: str, space: Any) -> list[Breach]:
    """Returns what is wrong with `observation_space` or `action_space` as an object."""
    if isinstance(space, gym.Space):
        return []
    got = f"the class {space.__name__} itself" if isinstance(space, type) else _describe(space)
    example = "Box(low, high, shape)" if name == "observation_space" else "Discrete(n)"
    message = f"{name} is {got}; it must be an instance of a gymnasium space, such as {example}"
    return [Breach("fatal", name.replace("_", "-"), message)]


def space_change_breaches(name: str, declared: gym.Space[Any], now: Any) -> list[Breach]:
    """Returns the breach of a space that is another than when the environment was made."""
    if now is declared or now == declared:
        return []
    return [Breach("fatal", "space-changed", f"{name} changed from {declared} to {now}; spaces must stay as they were")]


def raised(during: str, error: BaseException) -> str:
    """Returns the words for an exception of the environment, `sys.exit` among them: its own text, on one line."""
    if isinstance(error, SystemExit):
        return f"{during} called sys.exit({error.code!r})"
    return f"{during} raised {type(error).__name__}: {' '.join(str(error).split())}"


def raise_if_broken(breaches: Iterable[Breach]) -> None:
    """Raises the first fatal breach.

    Raises:
        ContractBroken: There is one.
    """
    for breach in breaches:
        if breach.severity == "fatal":
            raise ContractBroken(breach)


def _nested(space: gym.Space[Any], observation: Any, path: tuple[str | int, ...]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, observation[key], (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, observation[i], (*path, i)) for i, part in enumerate(space.spaces))
    return _leaf_as_declared(Leaf(path, space), observation)


def _structure_breaches(space: gym.Space[Any], observation: Any, path: tuple[str | int, ...]) -> Iterator[Breach]:
    name = _called(path)
    if isinstance(space, spaces.Dict):
        if not same_keys(space, observation):
            keys = sorted(map(str, observation)) if isinstance(observation, Mapping) else None
            got = _describe(observation) if keys is None else f"the keys {keys}"
            yield Breach("fatal", "structure", f"{name} has {got}; the space declares the keys {sorted(space.spaces)}")
            return
        for key, part in space.spaces.items():
            yield from _structure_breaches(part, observation[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            got = f"{len(observation)} parts" if isinstance(observation, tuple | list) else _describe(observation)
            yield Breach("fatal", "structure", f"{name} has {got}; the space declares a tuple of {len(space.spaces)}")
            return
        for i, part in enumerate(space.spaces):
            yield from _structure_breaches(part, observation[i], (*path, i))


def _leaf_as_declared(leaf: Leaf, observation: Any) -> Any:
    if not isinstance(leaf.space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return observation
    breaches = [b for b in _leaf_breaches(leaf, observation) if b.code in ("shape", "dtype", "outside")]
    raise_if_broken(breaches)
    return np.array(observation, leaf.space.dtype)


def _leaf_breaches(leaf: Leaf, observation: Any) -> Iterator[Breach]:
    space, name = leaf.space, _called(leaf.path)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    dtype = np.dtype(space.dtype)
    if not observation_is_array(observation):
        yield Breach("fatal", "dtype", f"{name} is {_describe(observation)}; the space declares {dtype} numbers")
        return
    array = np.asarray(observation)
    if array.shape != space.shape:
        yield Breach("fatal", "shape", f"{name} has shape {array.shape}; the space declares {space.shape}")
        return
    if not isinstance(observation, np.ndarray | np.generic | int | float) or array.dtype != dtype:
        yield from _dtype_breach(name, observation, array, dtype)
    yield from _value_breaches(leaf, array)


def _dtype_breach(name: str, observation: Any, array: NDArray[Any], dtype: np.dtype[Any]) -> Iterator[Breach]:
    if isinstance(observation, int) and dtype.kind in "iu":
        return
    fits = np.can_cast(array.dtype, dtype, "same_kind") or bool((array.astype(dtype) == array).all())
    advice = "it is cast" if fits else "a cast would change its values"
    message = f"{name} is {_describe(observation)}; the space declares {dtype} ({advice})"
    yield Breach("warning" if fits else "fatal", "dtype", message)


def _value_breaches(leaf: Leaf, array: NDArray[Any]) -> Iterator[Breach]:
    space = leaf.space
    bad = ~np.isfinite(array)
    if bad.any():
        index = _first(bad)
        yield not_finite(leaf.feature(index), float(array[index]))
        return
    low, high = _bounds(space)
    outside = (array < low) | (array > high)
    if outside.any():
        index = _first(outside)
        least, most = (np.broadcast_to(bound, array.shape)[index] for bound in (low, high))
        feature, value = leaf.feature(index), str(array[index])
        severity: Severity = "warning" if isinstance(space, spaces.Box) else "fatal"
        message = f"observation feature {feature} is {value}; the space declares {least} to {most}"
        yield Breach(severity, "outside", message, feature, value)


def _bounds(space: gym.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _first(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def _called(path: tuple[str | int, ...]) -> str:
    return " ".join(("observation", Leaf(path, gym.spaces.Discrete(1)).name)).strip()


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, np.generic):
        return f"a {value.dtype}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
