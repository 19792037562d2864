"""Excludes received directories from imports: no module is imported from inside a run directory or a download.

With `PYTHONPATH=.` or `python -m`, Python looks for modules in the working folder, which may be that of a received run.
A directory stays excluded for the rest of the process, also for the imports of allowed modules.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from rl_training.errors import ModuleRefused

_excluded: dict[str, None] = {}
"""The absolute paths of excluded directories, as written and with links resolved."""

_BEGINNING = """import json, sys
sys.path[:], excluded = json.loads(sys.argv.pop(1))
from rl_training.security.import_guard import exclude_from_imports
for name in excluded:
    exclude_from_imports(name)
"""
"""What a child process does first: it takes over the import path and the excluded directories."""


class ImportRefused(ImportError):
    """A module was about to be imported from inside a received directory."""


class _Guard(MetaPathFinder):
    """The first of the import finders: refuses a module that the others find inside an excluded directory."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec that the other finders find.

        Raises:
            ImportRefused: The module is inside an excluded directory.
        """
        spec = _find_spec(fullname, path, target)
        place = _find_first_inside(spec, _excluded)
        if place is not None:
            raise ImportRefused(
                f"{fullname} is not imported from {place}, which is part of a received run", name=fullname
            )
        return spec


_guard = _Guard()


def exclude_from_imports(directory: str | Path) -> None:
    """Excludes `directory` from imports for the rest of the process."""
    _excluded.update(dict.fromkeys(_list_paths(directory)))
    if _guard not in sys.meta_path:
        sys.meta_path.insert(0, _guard)


def list_excluded() -> list[str]:
    """Returns the excluded directories, to exclude them in a child process."""
    return list(_excluded)


def make_command(program: str, *arguments: str) -> list[str]:
    """Returns the command of a child process that imports modules from where this process does.

    The working folder, which may be that of a received run, is not among these places unless this process has it.

    Args:
        program: The code of the child process.
        arguments: Its `sys.argv[1:]`.
    """
    places = json.dumps([[str(path) for path in sys.path], list_excluded()])
    return [sys.executable, "-P", "-c", _BEGINNING + program, places, *arguments]


def require_outside(module: str, who: str, directories: Iterable[str | Path]) -> None:
    """Checks, without importing a module, that its package does not lie inside one of `directories`.

    Args:
        module: The dotted name of the module.
        who: The source of that name, for messages.
        directories: The directories that hold received files.

    Raises:
        ModuleRefused: The module would be imported from one of them.
    """
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = getattr(loaded, "__spec__", None) if loaded is not None else _find_spec(top, None, None)
    place = _find_first_inside(spec, [path for directory in directories for path in _list_paths(directory)])
    if place is not None:
        raise ModuleRefused(
            f"{who} names the module {module}, and Python would import {top} from {place}, inside the run's own "
            f"directory or a download; modules are never imported from there: install {top} elsewhere, or take that "
            f"folder off PYTHONPATH and run the command in another one"
        )


def _find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if finder is not _guard and find_spec is not None:
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _find_first_inside(spec: ModuleSpec | None, directories: Collection[str]) -> str | None:
    for place in _list_places(spec) if directories else ():
        # Both as written and with links resolved, because a link in a run directory may point out of it.
        if any(_is_inside(path, folder) for path in _list_paths(place) for folder in directories):
            return place
    return None


def _list_paths(place: str | Path) -> tuple[str, str]:
    """Returns the absolute path of a place, as written and with links resolved."""
    return os.path.abspath(place), os.path.realpath(place)  # noqa: PTH100, because `..` must go and links must stay


def _list_places(spec: ModuleSpec | None) -> Iterator[str]:
    if spec is not None:
        if spec.has_location and spec.origin:
            yield spec.origin
        yield from spec.submodule_search_locations or ()


def _is_inside(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip(os.sep) + os.sep)
