"""Loads settings from a file, a shipped config, a text, a mapping or a checkpoint, and applies overrides.

The registry provides the settings class of each algorithm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.checking import build_settings, check_settings, to_config_error
from rl_training.config.document import MapNode, Place, Scalar, convert_word_list, read_mapping
from rl_training.config.named_modules import (
    keep_policy_modules,
    list_modules,
    remove_modules,
    require_permission,
)
from rl_training.config.parsing import Overrides, decode, expand_json, merge, read_overrides, read_yaml
from rl_training.config.reading.recorded_settings import read_recorded_settings
from rl_training.config.reading.typed_reader import Fault, TypedReader
from rl_training.config.resume_rules import (
    Continuation,
    check_differences,
    find_differences,
    keep_vectorization,
    make_difference,
)
from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.config.shipped_configs import find_config
from rl_training.config.suggestions import find_similar_word
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm, is_builtin, list_algorithms
from rl_training.run_layout import CONFIG

if TYPE_CHECKING:
    from rl_training.runtime.checkpoint import Checkpoint

TASK_SETTINGS = (
    "env_kwargs",
    "training_wrappers",
    "reset_options",
    "curriculum",
    *(f"evaluation.{key}" for key in ("env_id", "env_kwargs", "wrappers", "reset_options")),
    *(f"evaluation.{key}" for key in ("stop_at_return", "stop_after")),
    *(f"promotion.{key}" for key in ("model", "floor", "success_floor", "worst_episode")),
)
"""Dotted keys of the settings that belong to one environment, which fine-tuning on another one drops."""

WRAPPERS = frozenset({"wrappers", "training_wrappers"})
"""The settings with which environments are stepped one by one."""


def load_config(path: str | Path, overrides: Overrides = ()) -> TrainConfig:
    """Loads settings from a file.

    Args:
        path: A YAML file, the name of a shipped config such as `ppo/cartpole`, or the settings as JSON text (which a
            mapping becomes that is encoded twice on its way to a flow).
        overrides: Values that replace those in the file: a mapping with nested or dotted keys, or texts `a.b=1e-3`.

    Raises:
        ConfigError: The settings are not valid; one line for each fault: `file:line: key.path: got ..., expected ...`.
    """
    if isinstance(path, str) and path.lstrip().startswith("{"):
        return build_config(_parse_json(path), overrides)
    file = find_config(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from None
    return config_from_text(decode(data, str(file)), overrides, source=str(file))


def config_from_text(text: str, overrides: Overrides = (), *, source: str) -> TrainConfig:
    """Loads settings from YAML text; see `load_config`. Messages name the text by `source`."""
    return build_config(read_yaml(text, source), overrides)


def config_from_mapping(data: Mapping[str, Any], overrides: Overrides = (), *, source: str = "config") -> TrainConfig:
    """Loads settings from a mapping, such as the parameters of a flow; see `load_config`."""
    document = read_mapping(data, source)
    if not document.entries:
        raise ConfigError(f"{source}: empty config; expected at least algo, env_id and total_timesteps")
    return build_config(document, overrides)


def config_of_checkpoint(
    checkpoint: Checkpoint, overrides: Overrides = (), *, allow_modules: Collection[str] = ()
) -> TrainConfig:
    """Returns the settings that a checkpoint was written with, checked so that environments can be made from them.

    Plain secrets are hidden in a checkpoint and stay hidden.

    Args:
        checkpoint: A checkpoint.
        overrides: Values that replace those of the checkpoint.
        allow_modules: Modules that a received checkpoint may name; see `rl_training.config.named_modules`.

    Raises:
        ConfigError: The overrides are not valid; the message has one line for each fault.
        ModuleRefused: The checkpoint names a module that is not allowed.
    """
    source, over = f"{checkpoint.address}/{CONFIG}", read_overrides(overrides)
    config = build_config(read_recorded_settings(checkpoint.config_text(), source), over)
    require_permission(config, checkpoint.path, source=source, overrides=over, allow_modules=allow_modules)
    return config


def require_policy_permission(checkpoint: Checkpoint) -> None:
    """Checks that the modules may be imported that a checkpoint's policy is made with; most policies need none.

    Raises:
        ModuleRefused: The checkpoint names a module that is not allowed.
    """
    source = f"{checkpoint.address}/{CONFIG}"
    config = keep_policy_modules(build_config(read_recorded_settings(checkpoint.config_text(), source), ()))
    if list_modules(config):
        require_permission(config, checkpoint.path, source=source, overrides=read_overrides(()))


def recorded_settings(checkpoint: Checkpoint) -> TrainConfig:
    """Returns the settings that a checkpoint was written with, without the modules, for reading alone."""
    document = read_recorded_settings(checkpoint.config_text(), f"{checkpoint.address}/{CONFIG}")
    return remove_modules(build_config(document, ()))


def config_to_resume(
    checkpoint: Checkpoint,
    overrides: Overrides = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
) -> TrainConfig:
    """Returns the settings for training that continues from a checkpoint.

    Args:
        checkpoint: A checkpoint.
        overrides: Values that replace those of the checkpoint.
        fine_tune: Whether the weights alone are carried over. If the environment changes too, the settings of the old
            one are dropped: those of `TASK_SETTINGS`.
        allow_modules: See `config_of_checkpoint`.

    Raises:
        CheckpointError: An override changes a setting that must stay equal.
        ConfigError: The overrides are not valid; the message has one line for each fault.
        ModuleRefused: The checkpoint names a module that is not allowed.
    """
    config = _merge_for_resume(checkpoint, overrides, fine_tune)
    source, typed = f"{checkpoint.address}/{CONFIG}", read_overrides(overrides)
    require_permission(config, checkpoint.path, source=source, overrides=typed, allow_modules=allow_modules)
    return config


def _merge_for_resume(checkpoint: Checkpoint, overrides: Overrides, fine_tune: bool) -> TrainConfig:
    document = read_recorded_settings(checkpoint.config_text(), f"{checkpoint.address}/{CONFIG}")
    over = convert_word_list(read_overrides(overrides), "tags")
    before = build_config(document, ())
    how: Continuation = "fine_tune" if fine_tune else "resume"
    algo, env_id = over.entries.get("algo"), over.entries.get("env_id")
    if isinstance(algo, Scalar) and algo.value != before.algo:  # the other settings belong to another class then
        check_differences([make_difference("algo", before.algo, algo.value)])
    elsewhere = fine_tune and isinstance(env_id, Scalar) and env_id.value != before.env_id
    if elsewhere:
        document = _remove_task_settings(document)
    if before.vectorization in NATIVE and (elsewhere or (fine_tune and WRAPPERS & over.entries.keys())):
        document = _without(document, "vectorization")  # another task may have no such environments
    try:
        after = build_config(document, overrides)
        after = after if fine_tune else keep_vectorization(after, before)
    except ConfigError:
        # A setting that must not change is reported rather than a combination with it that can't work.
        reader = TypedReader(type(before))
        old, new = (reader.read_section(read, type(before), ()) for read in (document, merge(document, over)))
        if not reader.faults:
            changed = [key for key in over.entries if new[key] != old[key]]
            check_differences([make_difference(key, old[key], new[key], how) for key in changed])
        raise
    check_differences(find_differences(before, after, how))
    return after


def _remove_task_settings(document: MapNode) -> MapNode:
    """Removes `TASK_SETTINGS`: another environment's policy must not meet this one's champion, floor or evaluation."""
    for key in TASK_SETTINGS:
        section, _, name = key.rpartition(".")
        if not section:
            document = _without(document, name)
        elif isinstance(inner := document.entries.get(section), MapNode):
            document = replace(document, entries={**document.entries, section: _without(inner, name)})
    return document


def _without(node: MapNode, key: str) -> MapNode:
    return replace(node, entries={name: entry for name, entry in node.entries.items() if name != key})


def build_config(document: MapNode, overrides: Overrides) -> TrainConfig:
    """Returns the settings in a document that was read already; see `load_config`."""
    over = convert_word_list(read_overrides(overrides), "tags")
    document = merge(convert_word_list(document, "tags"), over)
    name, fault = _find_algorithm(document)
    if fault is not None:
        raise to_config_error([fault, *_find_common_faults(document)])
    return build_settings(document, get_algorithm(name).config_type)


def _parse_json(text: str) -> MapNode:
    document = expand_json(Scalar(text, "python", Place("config")))
    if not isinstance(document, MapNode):
        raise ConfigError("config: got text that begins with { and is not JSON; expected a mapping, a file or a name")
    return document


def _find_algorithm(document: MapNode) -> tuple[str, Fault | None]:
    """Returns the name of the algorithm, and the fault in it if there is one."""
    node = document.entries.get("algo")
    reader = TypedReader(TrainConfig)
    name = "" if node is None else reader.read(node, str, ("algo",))
    if not reader.faults and is_builtin(name):
        return name, None
    known = list_algorithms()
    expected = f"expected one of {', '.join(known)}"
    if node is None:
        return "", Fault(document.place, ("algo",), f"is required and missing; {expected}")
    if not reader.faults and name not in known:
        close = find_similar_word(name, known)
        reader.refuse(node, ("algo",), expected + (f" (did you mean {close}?)" if close else ""))
    return name, next(iter(reader.faults), None)


def _find_common_faults(document: MapNode) -> list[Fault]:
    """Returns the faults in the settings that all algorithms share; an algorithm is needed to check the others."""
    common = {key: node for key, node in document.entries.items() if key in TrainConfig.model_fields}
    common["algo"] = Scalar("unknown", "plain", document.place)
    return check_settings(replace(document, entries=common), TrainConfig)[1]
