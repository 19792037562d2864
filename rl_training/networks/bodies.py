"""The old name of `rl_training.networks.feature_extractors`, kept for one version."""

import warnings

from rl_training.networks.feature_extractors import (
    Body,
    ImageBody,
    MixedBody,
    ObservationLayout,
    VectorBody,
    fewest_weights,
    make_body,
    to_arrays,
)

__all__ = [
    "Body",
    "ImageBody",
    "MixedBody",
    "ObservationLayout",
    "VectorBody",
    "fewest_weights",
    "make_body",
    "to_arrays",
]

warnings.warn(
    "rl_training.networks.bodies is called rl_training.networks.feature_extractors now; the old name goes with the"
    " next version",
    DeprecationWarning,
    stacklevel=2,
)
