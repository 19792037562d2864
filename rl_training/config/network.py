"""The settings that the networks of all algorithms share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator

from rl_training.config.sections import ClassName, Kwargs, Settings
from rl_training.config.settings import TrainConfig
from rl_training.security.secrets import holds_secret


class BodyConfig(Settings):
    """A class of one's own that turns observations into the features of an MLP; a bare text is a name."""

    bare_field = "name"

    name: ClassName
    """`module:Class` of a subclass of `torch.nn.Module`."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Keyword arguments of the class."""

    @field_validator("kwargs")
    @classmethod
    def _hold_no_secret(cls, value: dict[str, Any]) -> dict[str, Any]:
        if holds_secret(value):
            raise ValueError(
                "expected no secret: a policy is made with these arguments again, and secrets are not kept"
            )
        return value


class MLPConfig(Settings):
    """Architecture of MLPs on the features of an observation."""

    hidden: tuple[PositiveInt, ...] = Field(strict=False)
    """Widths of the hidden layers of each MLP (after the body, or the convolutions for images)."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the hidden layers."""
    body: BodyConfig | None = None
    """A class of your own before the hidden layers, see [Networks of your own](how-to/own-networks.md); a bare
    `module:Class` has no arguments. Null: convolutions for images, and nothing for vectors."""


def find_body(config: TrainConfig) -> BodyConfig | None:
    """Returns the body that settings name; an algorithm of another package may have no `network`, or another one."""
    network = getattr(config, "network", None)
    return network.body if isinstance(network, MLPConfig) else None
