"""Checks a document against a settings class and reports every fault at once, each with its place and key path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from rl_training.config.document import MapNode, Place, nearest
from rl_training.config.reading.typed_reader import UNREADABLE, Fault, KeyPath, TypedReader, shown
from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError

MOST_FAULTS = 100
"""Lines of a refusal."""

ConfigT = TypeVar("ConfigT", bound=TrainConfig)


def check(document: MapNode, config_type: type[ConfigT]) -> ConfigT:
    """Returns the settings in `document`.

    Raises:
        ConfigError: One line for each fault.
    """
    config, faults = examine(document, config_type)
    if config is None:
        raise refusal(faults)
    return config


def examine(document: MapNode, config_type: type[ConfigT]) -> tuple[ConfigT | None, list[Fault]]:
    """Returns the settings in `document` and no faults, or None and all faults."""
    reader = TypedReader(config_type)
    values = reader.section(document, config_type, ())
    faults = reader.faults
    try:
        config = config_type.model_validate(values)
    except ValidationError as error:
        faults += [fault for keys, fault in _faults_of(error, document)]
    else:
        if not faults:
            return config, []
    return None, faults + _combinations_besides(faults, document, values, config_type)


def require_sections(overrides: MapNode, allowed: Sequence[str], who: str) -> None:
    """Refuses overrides of other settings than those of some sections.

    Args:
        overrides: As one document.
        allowed: The sections, by their top-level keys.
        who: Takes no others, for the message.

    Raises:
        ConfigError: A line for each other key.
    """
    message = f"is the run's own; {who} may set {' and '.join(f'{key}.*' for key in allowed)}"
    faults = [Fault(node.place, (key,), message) for key, node in overrides.entries.items() if key not in allowed]
    if faults:
        raise refusal(faults)


def refusal(faults: Iterable[Fault]) -> ConfigError:
    """Returns the error that lists `faults`, each once, by source and line."""
    unique = list(dict.fromkeys(faults))
    sources = list(dict.fromkeys(fault.place.source for fault in unique))
    unique.sort(key=lambda fault: (sources.index(fault.place.source), fault.place.line or 0))
    more = [f"and {len(unique) - MOST_FAULTS:,} faults more"] if len(unique) > MOST_FAULTS else []
    return ConfigError("\n".join([*map(str, unique[:MOST_FAULTS]), *more]))


def _faults_of(error: ValidationError, document: MapNode) -> list[tuple[set[KeyPath], Fault]]:
    """Returns the faults that pydantic found, each with the keys that it is about."""
    found: list[tuple[set[KeyPath], Fault]] = []
    for problem in error.errors(include_url=False):
        location: KeyPath = problem["loc"]
        node, depth = nearest(document, location)
        path = location[:depth]
        if problem["input"] is UNREADABLE:
            continue
        if problem["type"] == "combination":
            for keys, message in problem["ctx"]["faults"]:
                paths: list[KeyPath] = [tuple(key.split(".")) for key in keys]
                found.append((set(paths), Fault(_place_of_first(document, paths), paths[0], message)))
        elif problem["type"] == "missing":
            found.append(({location}, Fault(node.place, location, "is required and missing")))
        else:
            message = f"got {shown(node, path)}, {_expectation(problem['msg'])}"
            found.append(({path}, Fault(node.place, path, message)))
    return found


def _combinations_besides(
    faults: list[Fault], document: MapNode, values: Any, config_type: type[TrainConfig]
) -> list[Fault]:
    """Returns the combinations that can't work among the keys that have no fault of their own."""
    faulty = {fault.path for fault in faults}
    try:
        config_type.model_validate(_without(values, faulty, ()))
    except ValidationError as error:
        return [fault for keys, fault in _faults_of(error, document) if not keys & faulty]
    return []


def _without(values: Any, faulty: set[KeyPath], here: KeyPath) -> Any:
    """Returns values without those that are faulty, or are lists with faulty items."""
    if not isinstance(values, Mapping):
        return values
    kept = {}
    for key, item in values.items():
        path = (*here, key)
        inside = any(fault[: len(path)] == path for fault in faulty)
        if not inside or (isinstance(item, Mapping) and path not in faulty):
            kept[key] = _without(item, faulty, path)
    return kept


def _place_of_first(document: MapNode, paths: list[KeyPath]) -> Place:
    """Returns the place of the first of `paths` that was written."""
    for path in paths:
        node, depth = nearest(document, path)
        if depth == len(path):
            return node.place
    return document.place


def _expectation(message: str) -> str:
    """Returns pydantic's message as what was expected, in the words of the other messages."""
    message = message.removeprefix("Value error, ")
    return re.sub(r"^(Input|Value|String|Tuple|List|Dictionary) should (be |have |match )?", "expected ", message)
