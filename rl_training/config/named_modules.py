"""Decides which modules that settings name may be imported.

A user's own settings may name any module. A received run (a run directory, a checkpoint or a registered version from
somebody else) also names the modules of its environments, wrappers, callbacks, sinks and networks, and importing a
module runs its code. Each of these modules needs the user's permission: `--allow-module` or `allow_modules`, the
environment variable `RL_TRAINING_ALLOW_MODULES`, or a line in `allowed_modules.txt` in the home, where the modules of
runs that were started in this home are recorded as well.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_args

from rl_training.config.document import MapNode, Node
from rl_training.config.network import find_body
from rl_training.config.parsing import expand_json
from rl_training.config.sections import NamesModule, Settings, TrackingConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import ModuleRefused, UserError
from rl_training.run_layout import find_run_directory
from rl_training.security import owner_only_files
from rl_training.security.import_guard import exclude_from_imports, require_outside
from rl_training.system.paths import home

logger = logging.getLogger(__name__)

ALLOW_VARIABLE = "RL_TRAINING_ALLOW_MODULES"
"""Environment variable that lists the modules that received runs may name, separated by commas."""

ALLOWED_FILE = "allowed_modules.txt"
"""File in the home that lists the modules that received runs may name, one per line."""

ALLOWED_FILE_BYTES = 2**20
"""Largest size of `ALLOWED_FILE`, in bytes."""

SHIPPED = ("ale_py", "gymnasium.wrappers", "gymnasium_robotics", "rl_training.envs.goals.bit_flipping")
"""Modules that the shipped configurations name; importing them only registers environments."""

_WRITER, _WRITERS_MODULE = "RecordVideo", "gymnasium.wrappers"
"""Gymnasium's wrapper that writes files to a folder given by one of its arguments, and the module to allow for it."""

_allowed_here: ContextVar[frozenset[str]] = ContextVar("allowed_here", default=frozenset())
"""The modules that the user allows for what is called in the block of `allowing`."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def list_modules(config: Settings) -> dict[str, str]:
    """Returns every module that settings name, by the dotted key of the setting: `{"env_id": "my_envs.walk"}`."""
    return {path: module for path, text in _find_marked(config, ()) if (module := text.rpartition(":")[0])}


def remove_modules(config: TrainConfig) -> TrainConfig:
    """Returns settings that name no modules. They are for reading only: they can't import an environment."""
    config = keep_policy_modules(config)
    if find_body(config) is None:
        return config
    network = config.network.model_copy(update={"body": None})  # type: ignore[attr-defined]
    return config.model_copy(update={"network": network})


def keep_policy_modules(config: TrainConfig) -> TrainConfig:
    """Returns settings that name only modules in the algorithm's own settings, which a policy may be made with."""
    evaluation = config.evaluation.model_copy(update={"env_id": None, "wrappers": None})
    none = dict.fromkeys(("wrappers", "training_wrappers", "callbacks"), ())
    bare = {"env_id": config.env_id.rpartition(":")[2], "evaluation": evaluation, "tracking": TrackingConfig()}
    return config.model_copy(update={**bare, **none})


@contextmanager
def allowing(modules: Collection[str]) -> Iterator[None]:
    """Allows modules for all checkpoints that are used in the block, such as a candidate and the champion beside it.

    Raises:
        ModuleRefused: A name is not the name of a module.
    """
    token = _allowed_here.set(_allowed_here.get() | _parse_names(_list_words(modules), "--allow-module"))
    try:
        yield
    finally:
        _allowed_here.reset(token)


def require_permission(
    config: TrainConfig, directory: Path, *, source: str, overrides: MapNode, allow_modules: Collection[str] = ()
) -> None:
    """Checks that every module that a checkpoint's settings name may be imported.

    Args:
        config: The checkpoint's settings, with overrides.
        directory: The checkpoint's directory.
        source: The name of the settings in messages.
        overrides: The overrides; a module that they name is the user's own choice.
        allow_modules: Modules that the user allows; a package includes its submodules.

    Raises:
        ModuleRefused: A module is not allowed, would be imported from inside the run's directory or a download, or an
            allowed name is not the name of a module.
    """
    named, writers, run_dir = list_modules(config), _find_writers(config, overrides), find_run_directory(directory)
    exclude_from_imports(run_dir)
    if (named or writers) and not _is_of_this_home(directory):
        allowed = _collect_allowed(allow_modules)
        received = {key: name for key, name in named.items() if not _is_overridden(key, overrides)}
        refused = {key: name for key, name in received.items() if not _covers({*SHIPPED, *allowed}, name)}
        if refused:
            raise ModuleRefused(_format_refusal(refused, source))
        if writers and not _covers(allowed, _WRITERS_MODULE):
            raise ModuleRefused(
                f"{source}: {writers[0]} is {_WRITER}, which writes files wherever its arguments say; if you trust "
                f"this run, pass --allow-module {_WRITERS_MODULE} (allow_modules in Python and in flows), or override "
                f"{writers[0].rsplit('.', 2)[0]} to leave it out"
            )
    for key, module in named.items():
        require_outside(module, f"{source}: {key}", [run_dir, *_is_in_home("downloads")])


def record_modules(config: TrainConfig) -> None:
    """Records in the home that a run was started with the modules of these settings, which allows them from then on."""
    try:
        path = home() / ALLOWED_FILE
        missing = sorted(
            {name for name in list_modules(config).values() if not _covers({*SHIPPED, *_read_allowed_file(path)}, name)}
        )
        if not missing:
            return
        owner_only_files.make_file(path)
        with path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            separator = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(separator + "".join(f"{name}\n" for name in missing).encode())
    except (OSError, UserError) as error:
        logger.warning("can't record this run's modules in the home, so a resume may need --allow-module: %s", error)


def _find_writers(config: TrainConfig, overrides: MapNode) -> list[str]:
    """Returns the settings that name Gymnasium's wrapper that writes files, without those that the user overrides."""
    lists = {
        "wrappers": config.wrappers,
        "training_wrappers": config.training_wrappers,
        "evaluation.wrappers": config.evaluation.wrappers or (),
    }
    named = {f"{key}.{i}.name": wrapper.name for key, wrappers in lists.items() for i, wrapper in enumerate(wrappers)}
    writers = (key for key, name in named.items() if name.rpartition(":")[2] == _WRITER)
    return [key for key in writers if not _is_overridden(key, overrides)]


def _find_marked(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields the dotted key and the text of each setting that may name a module."""
    if isinstance(value, Settings):
        for name, field in type(value).model_fields.items():
            item = getattr(value, name)
            if any(isinstance(mark, NamesModule) for mark in field.metadata) or _is_marked(field.annotation):
                yield from _find_texts(item, (*path, name))
            else:
                yield from _find_marked(item, (*path, name))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _find_marked(item, (*path, str(i)))


def _is_marked(annotation: Any) -> bool:
    """Tells whether a type contains the mark `NamesModule`, as `EnvId | None` does."""
    if any(isinstance(mark, NamesModule) for mark in getattr(annotation, "__metadata__", ())):
        return True
    return any(_is_marked(argument) for argument in get_args(annotation))


def _find_texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield ".".join(path), value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _find_texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _find_texts(item, (*path, str(i)))


def _is_overridden(key: str, overrides: Node) -> bool:
    """Tells whether overrides give a setting, either directly or by replacing what contains it."""
    for name in key.split("."):
        if not isinstance(overrides, MapNode):
            return True
        if name not in overrides.entries:
            return False
        overrides = expand_json(overrides.entries[name])
    return True


def _is_of_this_home(directory: Path) -> bool:
    """Tells whether a checkpoint is in the home's `runs`; a link from there to another place does not count."""
    with suppress(OSError, UserError):
        return directory.resolve().is_relative_to((home() / "runs").resolve())
    return False


def _is_in_home(name: str) -> list[Path]:
    """Returns the path of that name in the home, or nothing if the home can't be used: settings can still be read."""
    with suppress(UserError):
        return [home() / name]
    return []


def _collect_allowed(given: Collection[str]) -> set[str]:
    named = _allowed_here.get() | _parse_names(_list_words(given), "--allow-module")
    named |= _parse_names(os.environ.get(ALLOW_VARIABLE, "").split(","), ALLOW_VARIABLE)
    return {*named, *(name for path in _is_in_home(ALLOWED_FILE) for name in _read_allowed_file(path))}


def _list_words(given: Collection[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _read_allowed_file(path: Path) -> set[str]:
    """Returns the modules that the file in the home lists.

    Raises:
        ModuleRefused: The file can't be read or is too large, or a line is not the name of a module.
    """
    try:
        with path.open("rb") as file:
            data = file.read(ALLOWED_FILE_BYTES + 1)
        text = data.decode()
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        raise ModuleRefused(
            f"{path} can't be read: {error}; it lists the modules that received runs may name"
        ) from None
    if len(data) > ALLOWED_FILE_BYTES:
        raise ModuleRefused(f"{path} is larger than {ALLOWED_FILE_BYTES:,} bytes; expected one module per line")
    return _parse_names((line.partition("#")[0] for line in text.splitlines()), str(path))


def _parse_names(words: Iterable[str], where: str) -> set[str]:
    found = {word.strip() for word in words} - {""}
    for word in sorted(found):
        if not _MODULE.fullmatch(word):
            raise ModuleRefused(f"{where}: got {word!r}, expected a module's name such as my_envs or my_envs.walk")
    return found


def _covers(allowed: Collection[str], module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _format_refusal(refused: Mapping[str, str], source: str) -> str:
    named = ", ".join(f"{key} names the module {module}" for key, module in refused.items())
    modules = sorted(set(refused.values()))
    flags = " ".join(f"--allow-module {module}" for module in modules)
    return (
        f"{source}: {named}; a received run's modules are imported only if you allow them: pass {flags} "
        f"(allow_modules in Python and in flows), set {ALLOW_VARIABLE}={','.join(modules)}, or add a line to "
        f"{ALLOWED_FILE} in the home"
    )
