"""Makes modules of the class that `network.body` names."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rl_training.config.network import BodyConfig
from rl_training.errors import USER_CODE_ERRORS, ConfigError, error_line
from rl_training.networks.feature_extractors import ObservationLayout
from rl_training.security.named_class import find_named_class


def make_module(settings: BodyConfig, layout: ObservationLayout, seed: int) -> nn.Module:
    """Returns a new module of a body's class.

    Its weights are drawn from torch's generator of the CPU, which is seeded for the call and then as before, because
    torch's global random state is not part of a run.

    Args:
        settings: The class and its keyword arguments.
        layout: The first argument of the class.
        seed: The seed of the weights.

    Raises:
        ConfigError: The class can't be found, or raises an error.
    """
    base = "a class of networks; expected a subclass of torch.nn.Module"
    body_class = find_named_class(describe(settings), settings.name, nn.Module, base)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return body_class(layout, **copy.deepcopy(settings.kwargs))
    except USER_CODE_ERRORS as error:
        raise ConfigError(f"{describe(settings)} could not be made: {error_line(error)}") from error


def describe(settings: BodyConfig) -> str:
    """Returns the setting and its value, with which each message about a body begins."""
    return f"network.body: {settings.name}"
