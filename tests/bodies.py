"""Bodies of networks, as users write them: good ones, and one for each reason to refuse a body."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.networks.feature_extractors import ObservationLayout


class Vectors(nn.Module):
    """Returns vectors as they are, which is what networks do without a body."""

    def __init__(self, layout: ObservationLayout) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Normed(nn.Module):
    """A normalized layer on vectors."""

    def __init__(self, layout: ObservationLayout, width: int = 6) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(*layout.shape, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))


class Residual(nn.Module):
    """A small residual network on images."""

    def __init__(self, layout: ObservationLayout, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(layout.shape[0], channels, 3, padding=1)
        self.norm, self.second = nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images.to(self.first.weight.dtype) / 255)
        return torch.tanh(x + self.second(functional.silu(self.norm(x)))).flatten(1)


class Parts(nn.Module):
    """A residual network for each image of a mixed observation, beside its vector part."""

    def __init__(self, layout: ObservationLayout) -> None:
        super().__init__()
        names = [name for name in layout.dtype.names or () if name != "vector"]
        self.images = nn.ModuleDict({name: Residual(Image(layout.dtype[name].shape)) for name in names})

    def forward(self, parts: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([parts["vector"], *(image(parts[name]) for name, image in self.images.items())], 1)


class Image:
    """The layout of an image."""

    kind, dtype = "image", np.dtype(np.uint8)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Frozen(Normed):
    """Has fixed random features, as parameters that learn nothing."""

    def __init__(self, layout: ObservationLayout) -> None:
        super().__init__(layout)
        self.requires_grad_(False)


class Constants(Normed):
    """Has a buffer, which is the same in each instance."""

    scale: Tensor

    def __init__(self, layout: ObservationLayout) -> None:
        super().__init__(layout)
        self.register_buffer("scale", torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Wrong(nn.Module):
    """Two layers, and what `fault` says."""

    def __init__(self, layout: ObservationLayout, fault: str) -> None:
        super().__init__()
        self.fault, width = fault, layout.shape[0]
        if fault == "raises in __init__":
            raise ValueError("no such\nlayout")
        lazy = fault == "lazy"
        self.linear = nn.LazyLinear(4) if lazy else nn.Linear(width, 4)
        self.extra: Any = {
            "batch norm": nn.BatchNorm1d(4),
            "batch statistics": nn.BatchNorm1d(4, track_running_stats=False),
            "dropout": nn.Dropout(),
        }.get(fault, nn.Identity())
        if fault == "float64":
            self.linear.double()
        if fault == "numpy weights":
            with torch.no_grad():
                self.linear.weight.copy_(torch.from_numpy(np.random.default_rng().standard_normal((4, width))))
        if fault == "unused":
            self.unused = nn.Linear(2, 2)
        if fault == "random buffer":
            self.register_buffer("frequencies", torch.randn(4))
        if fault == "random attribute":
            self.frequencies = torch.randn(4)

    def forward(self, x: Tensor) -> Any:
        if self.fault == "in place":
            x.mul_(0.5)
        features = self.extra(self.linear(x))
        return {
            "raises in forward": lambda: self.missing,
            "a list": lambda: [features],
            "one axis": lambda: features[:, 0],
            "transposed": lambda: features.T[:3],
            "no features": lambda: features[:, :0],
            "half": lambda: features.half(),
            "infinite": lambda: features / 0.0,
            "detached": lambda: features.detach(),
            "infinite slope": lambda: (features * 0.0).sqrt() + features,
            "random buffer": lambda: features * self.frequencies,
            "random attribute": lambda: features * self.frequencies,
        }.get(self.fault, lambda: features)()


def not_a_class(layout: ObservationLayout) -> nn.Module:
    return Vectors(layout)
