"""Finds the files of configurations and sweeps, and those that ship with the package, such as `ppo/cartpole`."""

from __future__ import annotations

from pathlib import Path

from rl_training.config.suggestions import find_similar_word
from rl_training.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent.parent


def find_shipped_root() -> Path:
    """Returns the folder of the shipped configurations: in the installed package, or beside it in the repository."""
    return _find_root("configs", "configs")


def find_sweeps_root() -> Path:
    """Returns the folder of the shipped sweeps; see `find_shipped_root`."""
    return _find_root("shipped_sweeps", "sweeps")


def list_shipped_configs() -> list[str]:
    """Returns the names of all shipped configurations, sorted."""
    return _list_names(find_shipped_root(), "*/*.yaml")


def list_shipped_sweeps() -> list[str]:
    """Returns the names of all shipped sweeps, sorted."""
    return _list_names(find_sweeps_root(), "*.yaml")


def find_config(path: str | Path, folder: Path = Path()) -> Path:
    """Returns the file at `path`, or the shipped configuration of that name.

    Args:
        path: An absolute path, one relative to `folder`, or a name.
        folder: The folder of a file that names the configuration; by default the working directory.

    Raises:
        ConfigError: Neither exists.
    """
    return _find(path, folder, find_shipped_root(), list_shipped_configs(), "configuration")


def find_sweep(path: str | Path) -> Path:
    """Returns the sweep's file at `path`, or the shipped sweep of that name.

    Raises:
        ConfigError: Neither exists.
    """
    return _find(path, Path(), find_sweeps_root(), list_shipped_sweeps(), "sweep")


def _find_root(packed: str, beside: str) -> Path:
    inside = _PACKAGE / packed
    return inside if inside.is_dir() else _PACKAGE.parent / beside


def _list_names(root: Path, pattern: str) -> list[str]:
    return sorted(file.relative_to(root).with_suffix("").as_posix() for file in root.glob(pattern))


def _find(path: str | Path, folder: Path, root: Path, known: list[str], kind: str) -> Path:
    try:
        given = Path(path).expanduser()
        file = folder / given
        is_folder, exists = file.is_dir(), file.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"got an unusable path ({type(error).__name__}) of a {kind}, expected a YAML file") from None
    if exists and not is_folder:
        return file
    name = given.as_posix().removesuffix(".yaml")
    if name in known:
        return root / f"{name}.yaml"
    if is_folder:
        raise ConfigError(f"{path}: is a folder, expected a YAML file or a shipped name: {', '.join(known)}")
    close = find_similar_word(name, known)
    hint = f" (did you mean {close}?)" if close else ""
    raise ConfigError(f"{path}: no such file, and no shipped {kind} of this name{hint}; shipped: {', '.join(known)}")
