"""Builds settings from a document or from Python values, and reports every fault at once with its place and key path.

`TypedReader` reads each value as the type that the settings class expects, and finds unknown keys; pydantic then checks
ranges and combinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rl_training.config.document import (
    MapNode,
    Node,
    Place,
    Scalar,
    convert_word_list,
    find_nearest,
    make_node,
    to_plain_data,
)
from rl_training.config.reading.typed_reader import UNREADABLE, Fault, KeyPath, TypedReader, format_node
from rl_training.errors import ConfigError, describe_expectation

MOST_FAULTS = 100
"""Most faults that one error lists."""

OBJECTS: Mapping[str, str] = {
    "env_id": 'expected an id: gymnasium.register("My-v0", entry_point=MyEnv), then "My-v0"',
    "wrappers": 'expected names such as "ClipReward", or "module:Class" of your own',
    "training_wrappers": 'expected names such as "ClipReward", or "module:Class" of your own',
    "callbacks": 'expected names such as "module:Class"; pass objects to train(config, callbacks=[...])',
}
"""What to do instead of giving a Python object, by the setting."""

READ = object()
"""The context of pydantic for values that `TypedReader` has read."""

SettingsT = TypeVar("SettingsT", bound=BaseModel)


def build_settings(root: Node, config_type: type[SettingsT]) -> SettingsT:
    """Returns the settings in a document.

    Raises:
        ConfigError: The document has faults; the message has a line for each.
    """
    config, faults = check_settings(root, config_type)
    if config is None:
        raise to_config_error(faults)
    return config


def check_settings(root: Node, config_type: type[SettingsT]) -> tuple[SettingsT | None, list[Fault]]:
    """Returns the settings in a document and no faults, or None and all faults."""
    reader = TypedReader(config_type)
    values = reader.read_section(root, config_type, ())
    faults = reader.faults
    try:
        config = config_type.model_validate(values, context=READ)
    except ValidationError as error:
        faults += [fault for keys, fault in _convert_errors(error, root) if not _concern(keys, reader.faults)]
    else:
        if not faults:
            return config, []
    faulty = {fault.path for fault in faults}
    try:  # pydantic checks combinations only if all fields are valid, so the faulty ones are left out
        config_type.model_validate(_remove_faulty(values, faulty, ()), context=READ)
    except ValidationError as error:
        faults += [fault for keys, fault in _convert_errors(error, root) if not _concern(keys, faults)]
    return None, faults


def read_python_settings(data: Any, config_type: type[SettingsT]) -> SettingsT:
    """Returns the settings that Python code gives, checked as those of a file.

    A float without a fraction is accepted as a whole number, a list as a tuple, and a mapping as a section. Text is
    always text, as text in quotes is in a file.

    Args:
        data: A mapping of keys to values, or a text for a class that has a `bare_field`.
        config_type: The settings class.

    Raises:
        ConfigError: The message has a line for each fault.
    """
    root, faults = read_python(data, config_type.__name__)
    config, more = check_settings(convert_word_list(root, "tags") if isinstance(root, MapNode) else root, config_type)
    unread = {fault.path[0] for fault in faults}
    faults += [fault for fault in more if fault.path[0] not in unread]
    if config is None or faults:
        raise to_config_error(faults)
    return config


def read_python(data: Any, source: str) -> tuple[Node, list[Fault]]:
    """Returns the document of values from Python code, without those that no file can hold, and their faults."""
    place = Place(source)
    if not isinstance(data, Mapping):
        return Scalar(data, "quoted" if isinstance(data, str) else "python", place), []
    entries: dict[str, Node] = {}
    faults = []
    for key, value in data.items():
        try:
            entries[key] = make_node(to_plain_data(_dump_models(value), key), place, text="quoted")
        except ValueError as error:
            path, _, message = str(error).partition(": ")
            got, _, expected = message.partition(", ")
            faults.append(Fault(place, tuple(path.split(".")), f"{got}, {OBJECTS.get(key, expected)}"))
        except RecursionError:
            faults.append(Fault(place, (key,), "nested too deeply"))
    return MapNode(entries, place), faults


def _dump_models(value: Any) -> Any:
    """Returns a value with the mapping in place of each settings object in it."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {key: _dump_models(item) for key, item in value.items()}
    return [_dump_models(item) for item in value] if isinstance(value, list | tuple) else value


def _split_key(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def _concern(keys: set[KeyPath], faults: list[Fault]) -> bool:
    """Returns whether a fault lies within one of the settings."""
    return any(fault.path[: len(key)] == key for key in keys for fault in faults)


def require_sections(overrides: MapNode, allowed: Sequence[str], who: str) -> None:
    """Refuses overrides of settings outside some sections.

    Args:
        overrides: The overrides as one document.
        allowed: The top-level keys of the sections that may be overridden.
        who: What takes the overrides, for the message.

    Raises:
        ConfigError: The overrides set another key; the message has a line for each.
    """
    message = f"can't be changed here; {who} may set {' and '.join(f'{key}.*' for key in allowed)}"
    faults = [Fault(node.place, (key,), message) for key, node in overrides.entries.items() if key not in allowed]
    if faults:
        raise to_config_error(faults)


def to_config_error(faults: Iterable[Fault]) -> ConfigError:
    """Returns an error that lists each of `faults` once, ordered by source and line."""
    unique = list(dict.fromkeys(faults))
    sources = list(dict.fromkeys(fault.place.source for fault in unique))
    unique.sort(key=lambda fault: (sources.index(fault.place.source), fault.place.line or 0))
    more = [f"and {len(unique) - MOST_FAULTS:,} more faults"] if len(unique) > MOST_FAULTS else []
    return ConfigError("\n".join([*map(str, unique[:MOST_FAULTS]), *more]))


def _convert_errors(error: ValidationError, root: Node) -> list[tuple[set[KeyPath], Fault]]:
    """Returns the faults that pydantic found, each with the keys that it concerns."""
    found: list[tuple[set[KeyPath], Fault]] = []
    for problem in error.errors(include_url=False):
        location: KeyPath = problem["loc"]
        node, depth = find_nearest(root, location)
        path = location[:depth]
        if problem["input"] is UNREADABLE:
            continue
        if problem["type"] == "combination":
            for keys, message in problem["ctx"]["faults"]:
                paths = [_split_key(key) for key in keys]
                nodes = (find_nearest(root, path) for path in paths)
                places = [node.place for (node, depth), path in zip(nodes, paths, strict=True) if depth == len(path)]
                found.append((set(paths), Fault([*places, root.place][0], paths[0], message, tuple(paths[1:]))))
        elif problem["type"] == "missing":
            found.append(({location}, Fault(node.place, location, "is required and missing")))
        else:
            expected = describe_expectation(problem["msg"])
            found.append(({path}, Fault(node.place, path, f"got {format_node(node, path)}, {expected}")))
    return found


def _remove_faulty(values: Any, faulty: set[KeyPath], here: KeyPath) -> Any:
    """Returns `values` without those that are faulty, and without lists that have faulty items."""
    if not isinstance(values, Mapping):
        return values
    kept = {}
    for key, item in values.items():
        path = (*here, key)
        inside = any(fault[: len(path)] == path for fault in faulty)
        if not inside or (isinstance(item, Mapping) and path not in faulty):
            kept[key] = _remove_faulty(item, faulty, path)
    return kept
