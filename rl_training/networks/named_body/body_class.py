"""Finds the class that `network.body` names, and makes modules of it."""

from __future__ import annotations

import copy
import importlib
from difflib import get_close_matches

import torch
from torch import nn

from rl_training.config.network import BodyConfig
from rl_training.errors import USER_CODE_ERRORS, ConfigError, error_line
from rl_training.networks.feature_extractors import ObservationLayout


def find_class(settings: BodyConfig) -> type[nn.Module]:
    """Returns the class of a body; nothing else that a name leads to is ever called.

    Raises:
        ConfigError: The module can't be imported, or does not have a class of modules of that name.
    """
    where, (module_name, _, class_name) = describe(settings), settings.name.rpartition(":")
    try:
        module = importlib.import_module(module_name)
    except USER_CODE_ERRORS as error:
        raise ConfigError(f"{where}: the module can't be imported: {error_line(error)}") from None
    found = getattr(module, class_name, None)
    if found is None:
        nearest = get_close_matches(class_name, dir(module), n=1)
        suggestion = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"{where}: {module_name} has no {class_name!r}{suggestion}")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{where} is not a class of networks; expected a subclass of torch.nn.Module")
    return found


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
    body_class = find_class(settings)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return body_class(layout, **copy.deepcopy(settings.kwargs))
    except USER_CODE_ERRORS as error:
        raise ConfigError(f"{describe(settings)} could not be made: {error_line(error)}") from error


def describe(settings: BodyConfig) -> str:
    """Returns the setting and its value, with which each message about a body begins."""
    return f"network.body: {settings.name}"
