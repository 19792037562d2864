"""Keeps received directories out of imports: no module is ever taken from inside a run's directory or a download.

With `PYTHONPATH=.` or `python -m`, Python looks for modules in the working folder, which may be a received run's. What
is kept out stays out for the rest of the process, for what an allowed module imports in turn as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from rl_training.errors import ModuleRefused

_kept_out: dict[str, None] = {}
"""The directories, absolute, as they are written and where their links lead."""


class ImportRefused(ImportError):
    """A module would have been imported from inside a received directory."""


class _Guard(MetaPathFinder):
    """Goes before all other finders, and refuses what they find inside of a directory that is kept out."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns what the other finders find.

        Raises:
            ImportRefused: It is inside of a directory that is kept out.
        """
        spec = _found(fullname, path, target)
        place = _first_inside(spec, _kept_out)
        if place is not None:
            raise ImportRefused(
                f"{fullname} is not imported from {place}, which is part of a received run", name=fullname
            )
        return spec


_guard = _Guard()


def keep_out(directory: str | Path) -> None:
    """Has nothing imported from inside `directory` from now on."""
    _kept_out.update(dict.fromkeys(_paths(directory)))
    if _guard not in sys.meta_path:
        sys.meta_path.insert(0, _guard)


def list_excluded() -> list[str]:
    """Returns the directories that are kept out, for a child process."""
    return list(_kept_out)


def require_outside(module: str, who: str, directories: Iterable[str | Path]) -> None:
    """Checks, without importing it, that a module's package is not found inside of one of `directories`.

    Args:
        module: Its dotted name.
        who: Names the module, for messages.
        directories: What received files lie in.

    Raises:
        ModuleRefused: It would be imported from there.
    """
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = getattr(loaded, "__spec__", None) if loaded is not None else _found(top, None, None)
    place = _first_inside(spec, [path for directory in directories for path in _paths(directory)])
    if place is not None:
        raise ModuleRefused(
            f"{who} names the module {module}, and Python would import {top} from {place}, inside the run's own "
            f"directory or a download; modules are never imported from there: install {top} elsewhere, or take that "
            f"folder off PYTHONPATH and run the command in another one"
        )


def _found(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if finder is not _guard and find_spec is not None:
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _first_inside(spec: ModuleSpec | None, directories: Collection[str]) -> str | None:
    for place in _places(spec) if directories else ():
        # As it is written, and where its links lead: one in a run's directory may point out of it.
        if any(_is_inside(path, folder) for path in _paths(place) for folder in directories):
            return place
    return None


def _paths(place: str | Path) -> tuple[str, str]:
    """Returns a place as it is written and where its links lead, both absolute."""
    return os.path.abspath(place), os.path.realpath(place)  # noqa: PTH100, as `..` must go and links must stay


def _places(spec: ModuleSpec | None) -> Iterator[str]:
    if spec is not None:
        if spec.has_location and spec.origin:
            yield spec.origin
        yield from spec.submodule_search_locations or ()


def _is_inside(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip(os.sep) + os.sep)
