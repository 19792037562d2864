"""Modules that settings name, and whether they may be imported: one's own settings may name any, received ones may not.

A received run (a run directory, a checkpoint or a registered version from somebody else) names the modules of its
environment and wrappers, and importing a module runs it. So each of them needs the user's word: `--allow-module` or
`allow_modules`, the environment variable `RL_TRAINING_ALLOW_MODULES`, or a line of `allowed_modules.txt` in the home,
where the modules of runs that were started in this home are noted as well.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from rl_training.config.document import MapNode, Node
from rl_training.config.reading.yaml_text import from_json
from rl_training.config.settings import NamesModule, Settings, TrainConfig
from rl_training.errors import ModuleRefused, UserError
from rl_training.run_layout import find_run_directory
from rl_training.security import owner_only_files
from rl_training.security.import_guard import keep_out, require_outside
from rl_training.system.paths import home

logger = logging.getLogger(__name__)

ALLOW_VARIABLE = "RL_TRAINING_ALLOW_MODULES"
"""Environment variable with modules that received runs may name, separated by commas."""

ALLOWED_FILE = "allowed_modules.txt"
"""In the home: modules that received runs may name, one a line."""

ALLOWED_FILE_BYTES = 2**20
"""A larger file is refused."""

SHIPPED = ("ale_py", "gymnasium.wrappers")
"""Modules that the shipped settings name; importing them does nothing but register environments."""

_WRITER, _WRITERS_MODULE = "RecordVideo", "gymnasium.wrappers"
"""The wrapper of Gymnasium that writes files, and where to is one of its arguments."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def modules_named(config: Settings) -> dict[str, str]:
    """Returns every module that settings name, by the dotted key of the setting: `{"env_id": "my_envs.walk"}`."""
    return {path: module for path, text in _names(config, ()) if (module := text.rpartition(":")[0])}


def without_modules(config: TrainConfig) -> TrainConfig:
    """Returns settings for reading alone: they name no module, so no environment can be imported by them."""
    return config.model_copy(update={"env_id": config.env_id.rpartition(":")[2], "wrappers": ()})


def require_word(
    config: TrainConfig, directory: Path, *, source: str, typed: MapNode, allow_modules: Collection[str] = ()
) -> None:
    """Checks that every module that a checkpoint's settings name may be imported.

    Args:
        config: The checkpoint's settings, with overrides.
        directory: The checkpoint's.
        source: Names the settings in messages.
        typed: The overrides; a module that they name is the user's own choice.
        allow_modules: Modules that the user allows; a package allows what is in it.

    Raises:
        ModuleRefused: A module has nobody's word, or would be imported from inside the run's directory or a download.
        UserError: One of the allowed names is no module's name.
    """
    named, writers, run_dir = modules_named(config), _writers(config, typed), find_run_directory(directory)
    keep_out(run_dir)
    if (named or writers) and not _is_of_this_home(directory):
        allowed = _allowed(allow_modules)
        received = {key: name for key, name in named.items() if not _is_typed(key, typed)}
        refused = {key: name for key, name in received.items() if not _covers({*SHIPPED, *allowed}, name)}
        if refused:
            raise ModuleRefused(_refusal(refused, source))
        if writers and not _covers(allowed, _WRITERS_MODULE):
            raise ModuleRefused(
                f"{source}: {writers[0]} is {_WRITER}, which writes files wherever its arguments say, and a received "
                f"run's are not believed; pass --allow-module {_WRITERS_MODULE} (allow_modules in Python and in "
                f"flows), or leave the wrapper out by an override of wrappers"
            )
    for key, module in named.items():
        require_outside(module, f"{source}: {key}", [run_dir, *_in_home("downloads")])


def note_modules(config: TrainConfig) -> None:
    """Notes in the home that a run was started with the modules of these settings: the user's word for later."""
    try:
        path = home() / ALLOWED_FILE
        missing = sorted(
            {name for name in modules_named(config).values() if not _covers({*SHIPPED, *_listed(path)}, name)}
        )
        if not missing:
            return
        owner_only_files.make_file(path)
        with path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            separator = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(separator + "".join(f"{name}\n" for name in missing).encode())
    except (OSError, UserError) as error:
        logger.warning("the modules of this run can't be noted in the home; a resume may ask for them: %s", error)


def _writers(config: TrainConfig, typed: MapNode) -> list[str]:
    """Returns the settings that name Gymnasium's wrapper that writes files, unless the user has typed them."""
    keys = {f"wrappers.{i}.name": wrapper.name.rpartition(":")[2] for i, wrapper in enumerate(config.wrappers)}
    return [key for key, name in keys.items() if name == _WRITER and not _is_typed(key, typed)]


def _names(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields dotted key and text of each setting that may name a module."""
    if isinstance(value, Settings):
        for name, field in type(value).model_fields.items():
            item = getattr(value, name)
            if any(isinstance(mark, NamesModule) for mark in field.metadata) or _is_marked(field.annotation):
                yield from _texts(item, (*path, name))
            else:
                yield from _names(item, (*path, name))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _names(item, (*path, str(i)))


def _is_marked(annotation: Any) -> bool:
    """Tells whether a type has the mark of a module's name in it, as `EnvId | None` has."""
    if any(isinstance(mark, NamesModule) for mark in getattr(annotation, "__metadata__", ())):
        return True
    return any(_is_marked(argument) for argument in get_args(annotation))


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield ".".join(path), value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _texts(item, (*path, str(i)))


def _is_typed(key: str, typed: Node) -> bool:
    """Tells whether overrides give a setting, itself or as a part of what they replace."""
    for name in key.split("."):
        if not isinstance(typed, MapNode):
            return True
        if name not in typed.entries:
            return False
        typed = from_json(typed.entries[name])
    return True


def _is_of_this_home(directory: Path) -> bool:
    """Tells whether a checkpoint lies in the home's `runs`; a link there to somewhere else does not count."""
    with suppress(OSError, UserError):
        return directory.resolve().is_relative_to((home() / "runs").resolve())
    return False


def _in_home(name: str) -> list[Path]:
    """Returns the place of that name in the home; nothing if the home can't be used: settings can still be read."""
    with suppress(UserError):
        return [home() / name]
    return []


def _allowed(given: Collection[str]) -> set[str]:
    words = [given] if isinstance(given, str) else list(given)
    named = _checked(words, "--allow-module") | _checked(os.environ.get(ALLOW_VARIABLE, "").split(","), ALLOW_VARIABLE)
    return {*named, *(name for path in _in_home(ALLOWED_FILE) for name in _listed(path))}


def _listed(path: Path) -> set[str]:
    """Returns the modules in the home's list.

    Raises:
        UserError: It can't be read, or a line is no module's name.
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
        raise ModuleRefused(f"{path} is larger than {ALLOWED_FILE_BYTES:,} bytes; expected a module a line")
    return _checked((line.partition("#")[0] for line in text.splitlines()), str(path))


def _checked(words: Iterable[str], where: str) -> set[str]:
    found = {word.strip() for word in words} - {""}
    for word in sorted(found):
        if not _MODULE.fullmatch(word):
            raise ModuleRefused(f"{where}: got {word!r}, expected a module's name such as my_envs or my_envs.walk")
    return found


def _covers(allowed: Collection[str], module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _refusal(refused: Mapping[str, str], source: str) -> str:
    named = ", ".join(f"{key} names the module {module}" for key, module in refused.items())
    modules = sorted(set(refused.values()))
    flags = " ".join(f"--allow-module {module}" for module in modules)
    return (
        f"{source}: {named}; modules that a received run names are not imported unless you allow them: pass {flags} "
        f"(allow_modules in Python and in flows), set {ALLOW_VARIABLE}={','.join(modules)}, or add a line to "
        f"{ALLOWED_FILE} in the home"
    )
