"""Turns state into tensors, numbers and strings, which can be stored and loaded without running any code.

`to_plain` turns numpy arrays into tagged tensors, and `from_plain` turns them back. A structured array, for which torch
has no dtype, is stored as its bytes and a description of its dtype.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError, one_line

ARRAY_KEY = "__ndarray__"
"""The key that marks a mapping as a numpy array."""

MAX_DEPTH = 60
"""The deepest nesting of containers in a state that is read."""
MAX_VALUES = 250_000
"""The largest number of tensors, numbers and strings in a policy; hashing gives each a name."""

_PLAIN = frozenset({type(None), bool, int, float, str})
_DTYPE = re.compile(r"[<>|][biufcSUVmM][0-9]{1,9}(\[[0-9a-zA-Z]{1,9}\])?")


def to_plain(state: Any, name: str = "state", *, copy: bool = False) -> Any:
    """Returns `state` with numpy arrays as tagged tensors, and tensors detached, on the CPU, with memory of their own.

    A state that is already plain is returned unchanged.

    Args:
        state: Tensors, numpy arrays, numbers, strings, booleans, None, and lists, tuples and string- or int-keyed
            mappings of them.
        name: The name of the state in error messages.
        copy: Whether the result must share no memory with `state`, so that `state` may change afterwards.

    Raises:
        TypeError: The state holds a value of another type; the message says where.
    """
    if isinstance(state, np.generic):  # first, because some numpy scalars are instances of float or str
        return to_plain(state.item(), name)
    if type(state) in _PLAIN:
        return state
    if isinstance(state, str):  # a subclass, such as the member of an enum
        return str.__str__(state)
    if isinstance(state, (int, float)):
        return int(state) if isinstance(state, int) else float(state)
    if isinstance(state, torch.Tensor) and state.layout is torch.strided:
        return _own_memory(state, copy)
    if isinstance(state, np.ndarray):
        return _array_to_plain(state, name)
    if isinstance(state, Mapping):
        for key in state:
            if not isinstance(key, (str, int)):
                raise TypeError(f"{name} has the key {key!r}; expected strings or integers")
        return {  # without a call for what is plain already, which is most of a state
            key if type(key) in _PLAIN else to_plain(key): (
                value if type(value) in _PLAIN else to_plain(value, f"{name}/{key}", copy=copy)
            )
            for key, value in state.items()
        }
    if isinstance(state, (list, tuple)):
        if _PLAIN.issuperset(map(type, state)):  # such as the returns of the latest episodes
            return tuple(state) if isinstance(state, tuple) else list(state)
        items = [to_plain(value, f"{name}/{i}", copy=copy) for i, value in enumerate(state)]
        return tuple(items) if isinstance(state, tuple) else items
    raise TypeError(
        f"{name} is a {type(state).__qualname__}; a checkpoint holds tensors, numpy arrays, numbers, strings, and "
        f"lists and mappings of them"
    )


def from_plain(state: Any, name: str = "state", depth: int = 0) -> Any:
    """Returns the state that `to_plain` was given, with numpy arrays restored.

    Raises:
        TypeError: The state holds something that `to_plain` never writes.
        ValueError: The state is nested deeper than `MAX_DEPTH`, or the size of an array differs from its tensor's.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"{one_line(name)} is nested more than {MAX_DEPTH} deep")
    if type(state) in _PLAIN:
        return state
    if type(state) is torch.Tensor:
        if state.layout is not torch.strided or state.device.type != "cpu" or state.is_quantized:
            raise TypeError(f"{name} is a tensor without plain memory ({state.layout}, {state.device})")
        return state
    if type(state) is dict:
        if ARRAY_KEY in state:
            return _array_from_plain(state, name)
        return {key: from_plain(value, f"{name}/{key}", depth + 1) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(from_plain(value, f"{name}/{i}", depth + 1) for i, value in enumerate(state))
    raise TypeError(f"{name} is a {type(state).__qualname__}, which no checkpoint of rl_training holds")


def iterate_leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name, such as `weights/body/0`, and value of each tensor, number and string in a plain state."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from iterate_leaves(value, name if key == ARRAY_KEY else f"{name}/{key}" if name else str(key))
    elif isinstance(state, (list, tuple)):
        for i, value in enumerate(state):
            yield from iterate_leaves(value, f"{name}/{i}" if name else str(i))
    else:
        yield name, state


def require_few_values(state: Any, path: Path) -> None:
    """Checks, before a policy is hashed, that it has at most `MAX_VALUES` values.

    Raises:
        CheckpointError: The policy has more values.
    """
    if next(islice(iterate_leaves(state), MAX_VALUES, None), None) is not None:
        raise CheckpointError(f"{path} is refused: it has more than {MAX_VALUES:,} values; no policy has so many")


def find_non_finite(state: Any) -> str | None:
    """Returns the place of the first NaN or infinity in a plain state, such as `weights/pi[3]`, or None."""
    for name, leaf in iterate_leaves(state):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not torch.isfinite(leaf).all():
            index = (~torch.isfinite(leaf)).nonzero()[0].tolist()
            return f"{name}[{', '.join(map(str, index))}]"
    return None


def policy_sha256(state: Mapping[str, Any]) -> str:
    """Returns the identity of a policy: a hash over sorted names, dtypes, shapes and bytes rather than over a file.

    Tensors and arrays of the same numbers hash the same, on any device.
    """
    digest = hashlib.sha256()
    for name, leaf in sorted(iterate_leaves(to_plain(state, "policy")), key=lambda item: item[0]):
        dtype, shape, data = _identify(leaf)
        digest.update(f"{name}\0{dtype}\0{shape}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _identify(leaf: Any) -> tuple[str, list[int], bytes]:
    if isinstance(leaf, torch.Tensor):
        data = leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(leaf.dtype).removeprefix("torch."), list(leaf.shape), data
    return type(leaf).__name__, [], repr(leaf).encode()


def _own_memory(tensor: torch.Tensor, copy: bool) -> torch.Tensor:
    own = tensor.detach().to("cpu")
    whole = own.is_contiguous() and own.untyped_storage().nbytes() == own.numel() * own.element_size()
    if whole and not (copy and own.data_ptr() == tensor.data_ptr()):
        return own
    return own.clone(memory_format=torch.contiguous_format)  # torch saves the complete storage of a view


def _array_to_plain(array: np.ndarray[Any, Any], name: str) -> dict[str, Any]:
    if array.dtype.hasobject:
        raise TypeError(f"{name} is an array of Python objects; a checkpoint holds numbers and strings")
    if array.dtype.kind in "biuf" and array.dtype.isnative and array.dtype != np.longdouble:
        return {ARRAY_KEY: torch.from_numpy(np.array(array, order="C"))}
    description = _describe(array.dtype)
    data = np.frombuffer(array.astype(_undescribe(description)).tobytes(), np.uint8)
    return {ARRAY_KEY: torch.from_numpy(data.copy()), "dtype": description, "shape": list(array.shape)}


def _array_from_plain(state: dict[Any, Any], name: str) -> np.ndarray[Any, Any]:
    tensor = from_plain(state[ARRAY_KEY], name)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__qualname__} where an array's tensor was expected")
    if "dtype" not in state:
        return np.array(tensor.numpy())
    dtype = _undescribe(state["dtype"])
    return np.frombuffer(tensor.numpy().tobytes(), dtype).reshape(state["shape"]).copy()


def _describe(dtype: np.dtype[Any]) -> Any:
    """Describes a dtype by strings and lists: `"<U4"`, or `[name, description, shape]` for each field, unpadded."""
    if dtype.fields is None:
        return dtype.str
    fields = [(name, dtype.fields[name][0]) for name in dtype.names or ()]
    return [[name, _describe(field.base), list(field.shape)] for name, field in fields]


def _undescribe(description: Any, depth: int = 0) -> np.dtype[Any]:
    if isinstance(description, str) and _DTYPE.fullmatch(description):
        return np.dtype(description)
    if not isinstance(description, list) or depth > 8:
        raise TypeError(f"{one_line(description)!r} does not describe a dtype")
    return np.dtype([(name, _undescribe(base, depth + 1), tuple(shape)) for name, base, shape in description])
