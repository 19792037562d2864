"""The array library that networks compute with: numpy on the CPU, torch on any other device.

The overhead of a call dominates the time of small networks, and numpy's is a fraction of torch's. Code that is written
with `xp` runs on both, because it uses only names and arguments that numpy and torch share, with `out` where it matters
for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.networks.cuda_graphs import CapturedFunction, Record, cuda_graph

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Array: TypeAlias = Any
"""An `np.ndarray` or a `Tensor`, depending on the backend."""

FEW_COLUMNS = 4
"""Number of columns up to which comparing columns is the fastest way to find each row's maximum."""


class Backend:
    """An array library with conversions to and from its arrays.

    Attributes:
        device: Device of the arrays.
        xp: The module `numpy` or `torch`.
    """

    def __init__(self, device: torch.device, xp: Any, record: Record | None = None) -> None:
        self.device, self.xp, self._record = device, xp, record
        self._rows: dict[int, Array] = {}
        self._ones: dict[tuple[int, Any], Array] = {}

    def array(self, array: np.ndarray) -> Array:
        """Converts a numpy array to an array of this backend, sharing memory if possible."""
        return array if self.xp is np else torch.from_numpy(array).to(self.device)

    def numpy(self, array: Array) -> np.ndarray:
        """Converts an array of this backend to a numpy array."""
        return array if self.xp is np else array.cpu().numpy()  # type: ignore[no-any-return]

    def view(self, tensor: Tensor) -> Array:
        """Returns an array on the memory of a tensor, detached from its graph."""
        return tensor.detach().numpy() if self.xp is np else tensor.detach()

    def tensor(self, array: Array) -> Tensor:
        """Returns a tensor on the memory of an array."""
        return torch.from_numpy(array) if self.xp is np else array

    def floats(self, numbers: Sequence[Any]) -> list[float]:
        """Converts arrays of one number each to floats, with a single wait for the device."""
        if self.xp is np:
            return [float(number) for number in numbers]
        return torch.stack([torch.as_tensor(number, device=self.device) for number in numbers]).tolist()

    def captured(self, function: FunctionT) -> FunctionT:
        """Returns the fastest form of a function of arrays: a `CapturedFunction` on a GPU, elsewhere the function."""
        if self._record is None:
            return function
        return CapturedFunction(function, self._record, self.device)  # type: ignore[return-value]

    def rows(self, count: int) -> Array:
        """Returns the cached array 0, 1, ..., count - 1, which indexes one element of each row."""
        if count not in self._rows:
            self._rows[count] = self.array(np.arange(count))
        return self._rows[count]

    def row_max(self, x_BK: Array) -> Array:
        """Returns the largest element of each row, [B], avoiding numpy's reduction, which is slow on short rows."""
        if x_BK.shape[1] <= FEW_COLUMNS:
            return reduce(self.xp.maximum, x_BK.T)
        return x_BK[self.rows(len(x_BK)), x_BK.argmax(1)]

    def row_sums(self, x_BK: Array) -> Array:
        """Returns the sum of each row, [B], computed as a product with ones."""
        key = (x_BK.shape[1], x_BK.dtype)
        if key not in self._ones:
            self._ones[key] = self.xp.ones_like(x_BK[0])
        return x_BK @ self._ones[key]

    def mean(self, x_B: Array) -> Array:
        """Returns the mean of an array [B]; numpy's `mean` takes several times as long."""
        return x_B.sum() / len(x_B)

    def numbers(self, mask: Array, like: Array) -> Array:
        """Converts a mask to ones and zeros in the dtype of the array `like`."""
        return mask.astype(like.dtype) if self.xp is np else mask.to(like.dtype)


NUMPY = Backend(torch.device("cpu"), np)
"""The backend of the CPU, which also draws actions on every device."""


def backend_of(device: torch.device) -> Backend:
    """Returns the backend of a device."""
    if device.type == "cpu":
        return NUMPY
    return Backend(device, torch, partial(cuda_graph, device) if device.type == "cuda" else None)


def softplus(xp: Any, x: Array) -> Array:
    """Returns log(1 + exp(x)), exact and finite even for large x."""
    return xp.clip(x, 0, None) + xp.log1p(xp.exp(-xp.abs(x)))
