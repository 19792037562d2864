"""A feature extractor that is a module of the user's own, in plain torch.

Shapes: B batch, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.config.network import BodyConfig
from rl_training.networks.feature_extractors import FeatureExtractor, ObservationLayout, Observations
from rl_training.networks.named_body.body_class import make_module
from rl_training.networks.named_body.first_batch import count_features


class ModuleBody(FeatureExtractor):
    """Applies a module whose gradients come from autograd."""

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.module, self.features = module, features

    def forward(self, observations: Observations) -> Tensor:
        """Returns the features [B, F] of vectors, images, or a tensor for each part of mixed observations."""
        given = observations if isinstance(observations, Tensor | Mapping) else torch.from_numpy(observations)
        return cast(Tensor, self.module(given)).contiguous()


def make_body(settings: BodyConfig, layout: ObservationLayout, rng: np.random.Generator) -> ModuleBody:
    """Returns the body that settings name, after trying it on one batch.

    Its seed comes from a child of the stream, so that the MLPs have the first weights that they have without a body.

    Args:
        settings: The class and its keyword arguments.
        layout: The layout of the observations, which is the first argument of the class.
        rng: Generator of the stream `init`.

    Raises:
        ConfigError: The class can't be found or made, or the body can't be used.
    """
    (child,) = rng.spawn(1)
    seed, another_seed = (int(number) for number in child.integers(2**63, size=2))
    modules = [make_module(settings, layout, each) for each in (seed, seed, another_seed)]
    return ModuleBody(modules[0], count_features(settings, layout, modules))
