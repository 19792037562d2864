"""The arrays that networks compute with: numpy's on the CPU, torch's on any other device.

A call of numpy costs a fraction of torch's, which is most of what small networks spend their time on. What is written
with `xp` runs on both: it uses names and arguments that numpy and torch have in common, with `out` where it matters.
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
"""An `np.ndarray` or a `Tensor`, whichever the backend has."""

FEW_COLUMNS = 4
"""Up to which the largest of each row is found quicker column by column."""


class Backend:
    """Numpy or torch, and the way into it and out of it.

    Attributes:
        device: Where the arrays lie.
        xp: The module `numpy` or `torch`.
    """

    def __init__(self, device: torch.device, xp: Any, record: Record | None = None) -> None:
        self.device, self.xp, self._record = device, xp, record
        self._rows: dict[int, Array] = {}
        self._ones: dict[tuple[int, Any], Array] = {}

    def array(self, array: np.ndarray) -> Array:
        """Returns what came as numpy's, sharing its memory where that can be."""
        return array if self.xp is np else torch.from_numpy(array).to(self.device)

    def numpy(self, array: Array) -> np.ndarray:
        """Returns an array as numpy's."""
        return array if self.xp is np else array.cpu().numpy()  # type: ignore[no-any-return]

    def view(self, tensor: Tensor) -> Array:
        """Returns a tensor of the device as an array on the same memory, without its graph."""
        return tensor.detach().numpy() if self.xp is np else tensor.detach()

    def tensor(self, array: Array) -> Tensor:
        """Returns an array as a tensor on the same memory."""
        return torch.from_numpy(array) if self.xp is np else array

    def floats(self, numbers: Sequence[Any]) -> list[float]:
        """Returns arrays of one number each as floats, waiting for the device once."""
        if self.xp is np:
            return [float(number) for number in numbers]
        return torch.stack([torch.as_tensor(number, device=self.device) for number in numbers]).tolist()

    def captured(self, function: FunctionT) -> FunctionT:
        """Returns a function of arrays as the device runs it best: on a GPU as a `CapturedFunction`, else as it is."""
        if self._record is None:
            return function
        return CapturedFunction(function, self._record, self.device)  # type: ignore[return-value]

    def rows(self, count: int) -> Array:
        """Returns 0, 1, ..., count - 1, to pick one element of each row by; made once."""
        if count not in self._rows:
            self._rows[count] = self.array(np.arange(count))
        return self._rows[count]

    def row_max(self, x_BK: Array) -> Array:
        """Returns the largest element of each row, [B]. Numpy is slow at reducing short rows, so not by its maximum."""
        if x_BK.shape[1] <= FEW_COLUMNS:
            return reduce(self.xp.maximum, x_BK.T)
        return x_BK[self.rows(len(x_BK)), x_BK.argmax(1)]

    def row_sums(self, x_BK: Array) -> Array:
        """Returns the sum of each row, [B], as a product with ones."""
        key = (x_BK.shape[1], x_BK.dtype)
        if key not in self._ones:
            self._ones[key] = self.xp.ones_like(x_BK[0])
        return x_BK @ self._ones[key]

    def mean(self, x_B: Array) -> Array:
        """Returns the mean of an array of one axis. Numpy's own takes several times as long."""
        return x_B.sum() / len(x_B)

    def numbers(self, mask: Array, like: Array) -> Array:
        """Returns 1 where a mask is true and 0 elsewhere, in the dtype of another array."""
        return mask.astype(like.dtype) if self.xp is np else mask.to(like.dtype)


NUMPY = Backend(torch.device("cpu"), np)
"""What computes on the CPU, and draws actions everywhere."""


def backend_of(device: torch.device) -> Backend:
    """Returns what computes on a device."""
    if device.type == "cpu":
        return NUMPY
    return Backend(device, torch, partial(cuda_graph, device) if device.type == "cuda" else None)


def softplus(xp: Any, x: Array) -> Array:
    """Returns log(1 + exp(x)), exact and finite however large x is."""
    return xp.clip(x, 0, None) + xp.log1p(xp.exp(-xp.abs(x)))
