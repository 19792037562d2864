"""Finds the class that a setting names, such as `package.module:Class`."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TypeVar

from rl_training.errors import USER_CODE_ERRORS, ConfigError, error_line

T = TypeVar("T")


def find_named_class(where: str, name: str, base: type[T], what: str) -> type[T]:
    """Imports a module and returns one of its classes; nothing else that a name leads to is ever called.

    Args:
        where: The setting and its value, with which each message begins.
        name: The module and the class, `module:Class`.
        base: A class that the named one must derive from.
        what: What such classes are, and the name of the base, for messages.

    Raises:
        ConfigError: The module can't be imported, or does not have such a class of that name.
    """
    module_name, _, class_name = name.rpartition(":")
    try:
        module = importlib.import_module(module_name)
    except USER_CODE_ERRORS as error:
        raise ConfigError(f"{where}: the module can't be imported: {error_line(error)}") from None
    found = getattr(module, class_name, None)
    if found is None:
        nearest = get_close_matches(class_name, dir(module), n=1)
        suggestion = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"{where}: {module_name} has no {class_name!r}{suggestion}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{where} is not {what}")
    return found
