"""The array library that networks compute with: numpy on the CPU, torch on any other device.

The overhead of a call dominates the time of small networks, and numpy's is a fraction of torch's. On the CPU, torch
computes large products where it is quicker and its results are equal to numpy's. Code that is written with `xp` runs on
both, because it uses only names and arguments that numpy and torch share, with `out` where it matters for speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from statistics import median
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.networks.cuda_graphs import CapturedFunction, Record, cuda_graph

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Array: TypeAlias = Any
"""An `np.ndarray` or a `Tensor`, depending on the backend."""

LEAST_FOR_TORCH = 2_000_000
"""Least number of multiplications of a product that torch may compute on the CPU: 32 rows by 256 x 256."""
CLEARLY_LESS = 0.95
"""Share of numpy's time that torch must not exceed."""
TRIALS = 7
"""Number of times that each library computes a product before one is chosen."""
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
        self._starts: dict[tuple[int, int], Array] = {}
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

    def row_starts(self, rows: int, columns: int) -> Array:
        """Returns the cached places of each row's first element in a flattened matrix, [rows].

        In numpy, indexing a flattened matrix takes a third of the time of indexing by row and column.
        """
        if (rows, columns) not in self._starts:
            self._starts[rows, columns] = self.rows(rows) * columns
        return self._starts[rows, columns]

    def zeros_like(self, array: Array) -> Array:
        """Returns zeros in the form of an array; numpy's function of this name takes eight times as long."""
        return np.zeros(array.shape, array.dtype) if self.xp is np else torch.zeros_like(array)

    def row_max(self, x_BK: Array) -> Array:
        """Returns the largest element of each row, [B], avoiding numpy's reduction, which is slow on short rows."""
        if x_BK.shape[1] <= FEW_COLUMNS:
            return reduce(self.xp.maximum, x_BK.T)
        return x_BK[self.rows(len(x_BK)), x_BK.argmax(1)]

    def sort_rows(self, x_BK: Array) -> Array:
        """Returns each row in ascending order; numpy's sort takes a tenth of the time of torch's on the CPU."""
        return np.sort(x_BK) if self.xp is np else x_BK.sort(1).values

    def row_sums(self, x_BK: Array) -> Array:
        """Returns the sum of each row, [B], computed as a product with ones."""
        key = (x_BK.shape[1], x_BK.dtype)
        if key not in self._ones:
            self._ones[key] = self.xp.ones_like(x_BK[0])
        return x_BK @ self._ones[key]

    def mean(self, x_B: Array) -> Array:
        """Returns the mean of an array [B]; numpy's `mean` takes several times as long."""
        return (np.add.reduce(x_B) if self.xp is np else x_B.sum()) / len(x_B)

    def numbers(self, mask: Array, like: Array) -> Array:
        """Converts a mask to ones and zeros in the dtype of the array `like`."""
        return mask.astype(like.dtype) if self.xp is np else mask.to(like.dtype)


class Form(NamedTuple):
    """The form of a product: its sizes and the order of its operands in memory."""

    sizes: tuple[int, int, int, int]
    """Number of products (S), rows of the left operand (M), its columns (K), and columns of the right one (N)."""
    transposed: tuple[bool, bool]
    """Whether the operands are transposed views."""
    threads: int
    """Number of threads that torch may use."""

    @staticmethod
    def of(left: Tensor, right: Tensor) -> Form:
        """Returns the form of the product of [S, M, K] and [S, K, N]."""
        transposed = left.stride(2) != 1, right.stride(2) != 1
        return Form((*left.shape, right.shape[2]), transposed, torch.get_num_threads())


@cache
def is_quicker_in_torch(form: Form) -> bool:
    """Returns whether torch computes products of a form in clearly less time than numpy, and with the same bits.

    Which library is quicker depends on the processor. Where both sum in the same order, their results are equal to the
    last bit, so no number of a training depends on the choice, and it may depend on measured times. Both libraries
    multiply random numbers in turn, each time elsewhere in memory, because the operands in an update are not in the
    nearest cache.
    """
    count, rows, inner, columns = form.sizes
    rng = np.random.default_rng(0)
    left = _draw((count, rows, inner), form.transposed[0], rng)
    right = _draw((count, inner, columns), form.transposed[1], rng)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    products = [torch.zeros(count, rows, columns) for _ in range(2)]
    for _ in range(TRIALS):
        left, right = (each.clone(memory_format=torch.preserve_format) for each in (left, right))
        for by_torch, taken in seconds.items():
            out = products[by_torch] = torch.zeros(count, rows, columns)
            arrays = left.numpy(), right.numpy(), out.numpy()
            began = time.thread_time()
            if by_torch:
                torch.bmm(left, right, out=out)
            else:
                np.matmul(*arrays[:2], out=arrays[2])
            taken.append(time.thread_time() - began)
    return torch.equal(*products) and median(seconds[True]) <= CLEARLY_LESS * median(seconds[False])


def _draw(shape: tuple[int, int, int], transposed: bool, rng: np.random.Generator) -> Tensor:
    """Returns standard normal numbers, float32, as a transposed view if that is wanted."""
    count, rows, columns = shape
    if transposed:
        return _draw((count, columns, rows), False, rng).transpose(1, 2)
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).clone()


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
