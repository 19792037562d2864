"""Finds configuration files, including those that ship with the package, such as `ppo/cartpole`."""

from __future__ import annotations

from pathlib import Path

from rl_training.config.suggestions import find_similar_word
from rl_training.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent.parent


def find_shipped_root() -> Path:
    """Returns the folder of the shipped configurations: in the installed package, or beside it in the repository."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def list_shipped_configs() -> list[str]:
    """Returns the names of all shipped configurations, sorted."""
    root = find_shipped_root()
    return sorted(file.relative_to(root).with_suffix("").as_posix() for file in root.glob("*/*.yaml"))


def find_config(path: str | Path) -> Path:
    """Returns the file at `path`, or the shipped configuration of that name.

    Raises:
        ConfigError: Neither exists.
    """
    try:
        file = Path(path).expanduser()
        is_folder, exists = file.is_dir(), file.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"config: got an unusable path ({type(error).__name__}), expected a YAML file") from None
    if exists and not is_folder:
        return file
    name = file.as_posix().removesuffix(".yaml")
    known = list_shipped_configs()
    if name in known:
        return find_shipped_root() / f"{name}.yaml"
    if is_folder:
        raise ConfigError(f"{path}: is a folder, expected a YAML file or a shipped name: {', '.join(known)}")
    close = find_similar_word(name, known)
    hint = f" (did you mean {close}?)" if close else ""
    raise ConfigError(
        f"{path}: no such file, and no shipped configuration of this name{hint}; shipped: {', '.join(known)}"
    )
