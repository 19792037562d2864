"""Loads a sweep from its file, a shipped name or a mapping, with the base config of its trials."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.checking import check_settings, to_config_error
from rl_training.config.document import MapNode, Node, Scalar, is_null, read_mapping
from rl_training.config.parsing import Overrides, decode, expand_dotted, expand_json, merge, read_overrides, read_yaml
from rl_training.config.reading.typed_reader import Fault
from rl_training.config.settings import TrainConfig
from rl_training.config.shipped_configs import find_config, find_sweep
from rl_training.errors import ConfigError, printable
from rl_training.experiment.loading import build_config, load_config
from rl_training.security.secrets import redact
from rl_training.sweeps.reading.space_checks import check_space
from rl_training.sweeps.space import Space, build_space
from rl_training.sweeps.sweep_config import INFO_METRIC, Parameter, SweepConfig

WITHOUT_EFFECT = ("name", "config", "overrides", "engine", "resources")
"""Settings that do not change a sweep's result, beside those that the base config contains already."""

MOST_STEM = 100
"""Characters of a file's name that become the sweep's."""


@dataclass(frozen=True)
class Sweep:
    """A sweep and the settings that its trials share."""

    uid: str
    name: str
    settings: SweepConfig
    base: TrainConfig
    """The base config with the sweep's overrides, without `run_dir`, `run_name` and `job`, which belong to one run."""
    digest: str
    """The sha256 of all settings that decide the result; secrets are left out."""

    @cached_property
    def space(self) -> Space:
        """The points to choose from."""
        return build_space(self.settings.space, self.base)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seeds of each point in the search."""
        return tuple(range(self.base.seed, self.base.seed + self.settings.seeds))


def load_sweep(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Sweep:
    """Loads a sweep.

    Args:
        source: A YAML file, the name of a shipped sweep such as `ppo_cartpole`, or the settings as a mapping, in which
            `config` is relative to the working directory.
        overrides: Values that replace those of the sweep: a mapping with nested or dotted keys, or texts `trials=50`.

    Raises:
        ConfigError: The settings are not valid; one line for each fault: `file:line: key.path: got ..., expected ...`.
    """
    if isinstance(source, Mapping):
        document, folder, stem = read_mapping(source, "sweep"), Path(), "sweep"
    else:
        file = find_sweep(source)
        document, folder, stem = _read_file(file), file.parent, printable(file.stem).strip()
    document = merge(_expand_keys(document), _expand_keys(read_overrides(overrides)))
    settings, faults = check_settings(document, SweepConfig)
    lines: list[str] = []
    base = _load_base(document, folder, lines)
    if base is not None:
        faults += check_space(document, settings, base)
        if settings is not None:
            faults += [*_check_metric(document, settings, base), *_check_ranks(document, settings, base)]
    if lines or faults or settings is None or base is None:
        raise ConfigError("\n".join([*lines, *([str(to_config_error(faults))] if faults else [])]))
    name = settings.name or stem[:MOST_STEM] or "sweep"
    return Sweep(uuid.uuid4().hex, name, settings, base, _compute_digest(settings, base))


def _read_file(file: Path) -> MapNode:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from None
    return read_yaml(decode(data, str(file)), str(file))


def _check_metric(document: MapNode, settings: SweepConfig, base: TrainConfig) -> Iterator[Fault]:
    if settings.metric.startswith(INFO_METRIC):
        key = settings.metric.removeprefix(INFO_METRIC)
        if key not in base.metrics.info:
            place = document.entries["metric"].place
            yield Fault(place, ("metric",), f"got {settings.metric}, expected {key} in metrics.info of the base config")


def _check_ranks(document: MapNode, settings: SweepConfig, base: TrainConfig) -> Iterator[Fault]:
    cpus, ranks = settings.resources.cpus, count_ranks(base)
    if cpus < ranks:
        place = document.entries.get("resources", document).place
        text = f"got {cpus}, expected {ranks} or more, because each run trains in {ranks} processes (ranks)"
        yield Fault(place, ("resources", "cpus"), text)


def count_ranks(base: TrainConfig) -> int:
    """Returns the number of processes that train one run."""
    return base.ranks if isinstance(base, PPOConfig) else 1


def _load_base(document: MapNode, folder: Path, lines: list[str]) -> TrainConfig | None:
    """Returns the base config, or None after adding its faults to `lines`."""
    overrides = document.entries.get("overrides")
    over = overrides if isinstance(overrides, MapNode) else ()
    node, file = document.entries.get("config"), None
    if isinstance(node, Scalar) and not is_null(node):
        try:  # a path of the command line is relative to the working directory, as elsewhere
            file = find_config(str(node.value), folder if node.place.line is not None else Path())
        except ConfigError as error:
            lines.append(str(Fault(node.place, ("config",), str(error))))
            return None
    try:
        if file is not None:
            base = load_config(file, over)
        elif isinstance(node, MapNode):
            base = build_config(node, over)
        else:
            return None  # a fault of the sweep's settings
        return base.replace(run_dir=None, run_name=None, job=None)
    except ConfigError as error:
        lines += str(error).splitlines()
        return None


def _expand_keys(document: MapNode) -> MapNode:
    """Returns a sweep's document in its usual form: nested keys in `overrides`, dotted keys in `space`."""
    entries = {key: expand_json(node) for key, node in document.entries.items()}
    if isinstance(node := entries.get("overrides"), MapNode):
        entries["overrides"] = replace(node, entries=expand_dotted(node.entries.items()).entries)
    if isinstance(node := entries.get("space"), MapNode):
        entries["space"] = replace(node, entries=_flatten(node))
    return replace(document, entries=entries)


def _flatten(space: MapNode) -> dict[str, Node]:
    """Returns the parameters by dotted key; a mapping of mappings is a level of the key."""
    found: dict[str, Node] = {}
    waiting = list(space.entries.items())
    while waiting:
        key, node = waiting.pop(0)
        if isinstance(node, MapNode) and _is_level(node):
            waiting[:0] = [(f"{key}.{name}", item) for name, item in node.entries.items()]
        elif key in found:
            raise ConfigError(f"{node.place}: space.{key}: given twice; keep one")
        else:
            found[key] = node
    return found


def _is_level(node: MapNode) -> bool:
    named = any(key in Parameter.model_fields for key in node.entries)
    return bool(node.entries) and not named and all(isinstance(item, MapNode) for item in node.entries.values())


def _compute_digest(settings: SweepConfig, base: TrainConfig) -> str:
    data = {
        "sweep": settings.model_dump(mode="json", exclude=set(WITHOUT_EFFECT)),
        "base": base.model_dump(mode="json"),
    }
    canonical = json.dumps(redact(data, references=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
