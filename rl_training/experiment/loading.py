"""Settings from a file, a shipped name, a text or a mapping, with overrides; the registry gives their type."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.checking import Fault, TypedReader, build_settings, check_settings, to_config_error
from rl_training.config.document import MapNode, Place, Scalar, convert_word_list, read_mapping
from rl_training.config.named_modules import remove_modules, require_permission
from rl_training.config.parsing import Overrides, decode, expand_json, merge, read_overrides, read_yaml
from rl_training.config.resume_rules import check_differences, find_differences, make_difference
from rl_training.config.settings import TrainConfig
from rl_training.config.shipped_configs import find_config
from rl_training.config.suggestions import find_similar_word
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm, list_algorithms
from rl_training.run_layout import CONFIG

if TYPE_CHECKING:
    from rl_training.runtime.checkpoint import Checkpoint


def load_config(path: str | Path, overrides: Overrides = ()) -> TrainConfig:
    """Returns the settings in a file.

    Args:
        path: A YAML file, the name of a shipped one (`ppo/cartpole`), or the settings themselves as JSON text (which is
            what becomes of a mapping that is encoded twice on its way to a flow).
        overrides: Values that go before the file's: a mapping (nested, or with dotted keys), or texts `a.b=1e-3`.

    Raises:
        ConfigError: A line for every fault: `file:line: key.path: what was got, what is expected`.
    """
    if isinstance(path, str) and path.lstrip().startswith("{"):
        return _config(_document_in_json(path), overrides)
    file = find_config(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from None
    return config_from_text(decode(data, str(file)), overrides, source=str(file))


def config_from_text(text: str, overrides: Overrides = (), *, source: str) -> TrainConfig:
    """Returns the settings in YAML text, as `load_config` does; `source` names it in messages."""
    return _config(read_yaml(text, source), overrides)


def config_from_mapping(data: Mapping[str, Any], overrides: Overrides = (), *, source: str = "config") -> TrainConfig:
    """Returns the settings in a mapping (of a flow's parameters, say), as `load_config` does."""
    document = read_mapping(data, source)
    if not document.entries:
        raise ConfigError(f"{source}: empty config; expected at least algo, env_id and total_timesteps")
    return _config(document, overrides)


def config_of_checkpoint(
    checkpoint: Checkpoint, overrides: Overrides = (), *, allow_modules: Collection[str] = ()
) -> TrainConfig:
    """Returns the settings that a checkpoint was written with, fit to make environments; hidden secrets stay hidden.

    Args:
        checkpoint: It.
        overrides: Values that go before the checkpoint's.
        allow_modules: Modules that the checkpoint may name though it was received; see
            `rl_training.config.named_modules`.

    Raises:
        ConfigError: A line for every fault of the overrides.
        ModuleRefused: It names a module that nobody has allowed.
    """
    source, over = str(checkpoint.path / CONFIG), read_overrides(overrides)
    config = config_from_text(checkpoint.config_text(), over, source=source)
    require_permission(config, checkpoint.path, source=source, overrides=over, allow_modules=allow_modules)
    return config


def recorded_settings(checkpoint: Checkpoint) -> TrainConfig:
    """Returns the settings that a checkpoint was written with, for reading alone: they name no modules."""
    return remove_modules(config_from_text(checkpoint.config_text(), source=str(checkpoint.path / CONFIG)))


def config_to_resume(
    checkpoint: Checkpoint,
    overrides: Overrides = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
) -> TrainConfig:
    """Returns the settings with which training goes on from a checkpoint.

    Args:
        checkpoint: It.
        overrides: Values that go before the checkpoint's.
        fine_tune: Whether the weights alone are carried over. Another environment begins without what belongs to the
            old one then: `env_kwargs`, and the registered model's name and floors under `promotion`.
        allow_modules: As in `config_of_checkpoint`.

    Raises:
        CheckpointError: An override changes what must stay as it was.
        ConfigError: A line for every fault of the overrides.
        ModuleRefused: It names a module that nobody has allowed.
    """
    config = _config_to_resume(checkpoint, overrides, fine_tune)
    source, typed = str(checkpoint.path / CONFIG), read_overrides(overrides)
    require_permission(config, checkpoint.path, source=source, overrides=typed, allow_modules=allow_modules)
    return config


def _config_to_resume(checkpoint: Checkpoint, overrides: Overrides, fine_tune: bool) -> TrainConfig:
    document = read_yaml(checkpoint.config_text(), str(checkpoint.path / CONFIG))
    over = convert_word_list(read_overrides(overrides), "tags")
    before = _config(document, ())
    algo, env_id = over.entries.get("algo"), over.entries.get("env_id")
    if isinstance(algo, Scalar) and algo.value != before.algo:  # the other settings are of another kind then
        check_differences([make_difference("algo", before.algo, algo.value)])
    if fine_tune and isinstance(env_id, Scalar) and env_id.value != before.env_id:
        document = _without_its_task(document)
    try:
        after = _config(document, overrides)
    except ConfigError:
        # A combination that can't work is beside the point where one of its settings may not change anyhow.
        reader = TypedReader(type(before))
        old, new = (reader.read_section(read, type(before), ()) for read in (document, merge(document, over)))
        if not reader.faults:
            changed = [key for key in over.entries if new[key] != old[key]]
            check_differences([make_difference(key, old[key], new[key], fine_tuning=fine_tune) for key in changed])
        raise
    check_differences(find_differences(before, after, fine_tuning=fine_tune))
    return after


def _without_its_task(document: MapNode) -> MapNode:
    """Leaves out what holds for one environment alone: another one's policy must not meet its champion or its floor."""
    entries = {key: node for key, node in document.entries.items() if key != "env_kwargs"}
    promotion = entries.get("promotion")
    if isinstance(promotion, MapNode):
        kept = {key: node for key, node in promotion.entries.items() if key not in ("model", "floor", "worst_episode")}
        entries["promotion"] = replace(promotion, entries=kept)
    return replace(document, entries=entries)


def _config(document: MapNode, overrides: Overrides) -> TrainConfig:
    over = convert_word_list(read_overrides(overrides), "tags")
    document = merge(convert_word_list(document, "tags"), over)
    name, fault = _algorithm(document)
    if fault is not None:
        raise to_config_error([fault, *_common_faults(document)])
    return build_settings(document, get_algorithm(name).config_type)


def _document_in_json(text: str) -> MapNode:
    document = expand_json(Scalar(text, "python", Place("config")))
    if not isinstance(document, MapNode):
        raise ConfigError("config: got text that begins with { and is no JSON; expected a mapping, a file or a name")
    return document


def _algorithm(document: MapNode) -> tuple[str, Fault | None]:
    """Returns the name of the algorithm, and what is wrong with it."""
    known = list_algorithms()
    expected = f"expected one of {', '.join(known)}"
    node = document.entries.get("algo")
    if node is None:
        return "", Fault(document.place, ("algo",), f"is required and missing; {expected}")
    reader = TypedReader(TrainConfig)
    name = reader.read(node, str, ("algo",))
    if not reader.faults and name not in known:
        close = find_similar_word(name, known)
        reader.refuse(node, ("algo",), expected + (f" (did you mean {close}?)" if close else ""))
    return name, next(iter(reader.faults), None)


def _common_faults(document: MapNode) -> list[Fault]:
    """Returns the faults in what all algorithms share; the other keys can't be judged without an algorithm."""
    common = {key: node for key, node in document.entries.items() if key in TrainConfig.model_fields}
    common["algo"] = Scalar("unknown", "plain", document.place)
    return check_settings(replace(document, entries=common), TrainConfig)[1]
