"""A residual convolutional network for images, as a body of the policy: `network.body: residual_cnn:ResidualCNN`.

The stages are those of IMPALA's deep network (Espeholt et al. 2018, figure 3) with a single block each, and with group
normalization (Wu and He 2018). Unlike batch normalization, it keeps no running statistics and treats each image by
itself.

Shapes: B batch, C channels, H height, W width, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.networks.feature_extractors import ObservationLayout

GROUPS = 4


class ResidualBlock(nn.Module):
    """Adds two normalized convolutions to its input, [B, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(GROUPS, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(GROUPS, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum, [B, C, H, W]."""
        return x + self.layers(x)


class ResidualCNN(nn.Module):
    """Stages of a convolution, a pooling that halves each side, and a residual block.

    Args:
        layout: Kind, shape and dtype of the observations; images have the shape (C, H, W).
        channels: The number of channels of each stage, multiples of `GROUPS`.
        features: The number of features (F).
    """

    def __init__(self, layout: ObservationLayout, channels: Sequence[int] = (16, 32, 32), features: int = 256) -> None:
        super().__init__()
        if layout.kind != "image":
            raise ValueError(f"got observations of the kind {layout.kind}, expected images")
        inputs, height, width = layout.shape
        stages: list[nn.Module] = []
        for outputs in channels:
            stages += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), ResidualBlock(outputs)]
            inputs, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs * height * width, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the features [B, F] of images, uint8 [B, C, H, W]."""
        x = self.stages(images.to(torch.float32) / 255)
        return functional.relu(self.norm(self.head(functional.relu(x).flatten(1))))
