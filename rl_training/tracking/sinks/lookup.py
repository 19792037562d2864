"""Finds the sink that a setting names."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from difflib import get_close_matches

from rl_training.config.resume_rules import SESSION
from rl_training.errors import USER_CODE_ERRORS, ConfigError, error_line
from rl_training.tracking.sinks.sink import Sink
from rl_training.tracking.sinks.tensorboard_sink import TensorBoardSink

TENSORBOARD = "tensorboard"
"""The name of the sink for TensorBoard in the settings."""

INSTALL = "pip install 'rl-training[tensorboard]'"


def require_usable_sinks(names: Iterable[str]) -> None:
    """Checks, without importing them, that the modules of sinks exist.

    Raises:
        ConfigError: A module is not installed, or a sink is defined in the program itself.
    """
    for name in names:
        module = name.rpartition(":")[0] or name
        if module == SESSION:
            raise ConfigError(
                f"tracking.sinks: got {name}, and a sink runs in a process of its own, which can't import it from the "
                f"program or notebook; move the class to a file such as my_sinks.py, and name it my_sinks:Class"
            )
        if not _is_installed(module):
            install = f"; {INSTALL}" if name == TENSORBOARD else "; install it or put its folder on PYTHONPATH"
            raise ConfigError(f"tracking.sinks: got {name}, and there is no module named {module!r}{install}")


def find_sink(name: str) -> type[Sink]:
    """Returns the class of a sink.

    Raises:
        ConfigError: The module can't be imported, or the name is not that of a subclass of `Sink`.
    """
    if name == TENSORBOARD:
        return TensorBoardSink
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except USER_CODE_ERRORS as error:
        raise ConfigError(f"module {module_name!r} failed on import: {error_line(error)}") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Sink)):
        nearest = get_close_matches(class_name, dir(module), n=1)
        suggestion = f"; did you mean {nearest[0]}?" if found is None and nearest else ""
        raise ConfigError(
            f"{module_name} has no sink {class_name!r}, a subclass of rl_training.tracking.sinks.Sink{suggestion}"
        )
    return found


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except USER_CODE_ERRORS:  # the package of a module is imported, which may fail
        return False
