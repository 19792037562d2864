"""Views of arrays in dtypes that torch supports."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def view_without_records(array: NDArray[Any]) -> NDArray[Any]:
    """Returns a view that torch can hold: records (mixed observations) become bytes, [..., bytes of a record]."""
    if array.dtype.names is None:
        return array
    return array.view(np.uint8).reshape(*array.shape, array.dtype.itemsize)
