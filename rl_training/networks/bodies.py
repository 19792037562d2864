"""The old name of `rl_training.networks.feature_extractors`, kept for one version."""

import warnings

from rl_training.networks.feature_extractors import FeatureExtractor as Body
from rl_training.networks.feature_extractors import ImageExtractor as ImageBody
from rl_training.networks.feature_extractors import MixedExtractor as MixedBody
from rl_training.networks.feature_extractors import ObservationLayout, to_arrays
from rl_training.networks.feature_extractors import VectorExtractor as VectorBody
from rl_training.networks.feature_extractors import count_fewest_weights as fewest_weights
from rl_training.networks.feature_extractors import make_feature_extractor as make_body

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
    "rl_training.networks.bodies was renamed to rl_training.networks.feature_extractors; use the new name, because the"
    " old one will be removed in the next version",
    DeprecationWarning,
    stacklevel=2,
)
