"""Finds the tensor that caused a NaN or infinity in an update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rl_training.data.replay_buffer import COMPUTED_AHEAD, ReplayBatch
from rl_training.envs.spaces.action_mask import take_features
from rl_training.errors import NumericError
from rl_training.networks.flat import FlatParameters


def require_finite_update(
    measured: Mapping[str, float], batch: ReplayBatch, networks: Mapping[str, FlatParameters]
) -> None:
    """Checks that the measurements of an update are finite.

    Args:
        measured: Losses and gradient norms by name. The rest is examined only if one of these is not finite.
        batch: The batch that the update learned from.
        networks: The networks that were evaluated or have a gradient, by name.

    Raises:
        NumericError: A measurement is not finite; the message names the cause in the replay, weights or gradients.
    """
    for name, value in measured.items():
        if not math.isfinite(value):
            what = _find_cause(batch, networks) or name
            raise NumericError(f"{what} is not finite ({name} {value}); a lower learning_rate may help")


def _find_cause(batch: ReplayBatch, networks: Mapping[str, FlatParameters]) -> str | None:
    for name, array in vars(batch).items():
        if array is None or name in COMPUTED_AHEAD:
            continue
        features = take_features(array)
        vector = features["vector"] if features.dtype.names else features
        if not np.isfinite(vector).all():
            return f"replayed {name}"
    for name, parameters in networks.items():
        if (weight := parameters.non_finite_parameter()) is not None:
            return f"weight {weight} of the {name}"
    for name, parameters in networks.items():
        if (weight := parameters.non_finite_gradient()) is not None:
            return f"gradient of {weight} of the {name}"
    return None
