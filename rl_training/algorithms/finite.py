"""Names the tensor that a NaN or infinity in an update comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rl_training.data.replay_buffer import ReplayBatch
from rl_training.errors import NumericError
from rl_training.networks.flat import FlatParameters


def require_finite(measured: Mapping[str, float], batch: ReplayBatch, networks: Mapping[str, FlatParameters]) -> None:
    """Passes an update's measurements on, where all are finite.

    Args:
        measured: Losses and gradient norms by name; only these are looked at where they are finite.
        batch: What was learnt from.
        networks: What was evaluated or has a gradient, by name.

    Raises:
        NumericError: One is not; names where it comes from, the first of replay, weights, gradients and losses.
    """
    for name, value in measured.items():
        if not math.isfinite(value):
            what = _culprit(batch, networks) or name
            raise NumericError(f"{what} is not finite ({name} {value}); a lower learning_rate may help")


def _culprit(batch: ReplayBatch, networks: Mapping[str, FlatParameters]) -> str | None:
    for name, array in vars(batch).items():
        vector = array["vector"] if array.dtype.names else array
        if not np.isfinite(vector).all():
            return f"replayed {name}"
    for name, parameters in networks.items():
        if (weight := parameters.non_finite_parameter()) is not None:
            return f"weight {weight} of the {name}"
    for name, parameters in networks.items():
        if (weight := parameters.non_finite_gradient()) is not None:
            return f"gradient of {weight} of the {name}"
    return None
