"""The command `init`: makes a project of one's own, and takes a newer rl_training into it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rl_training.cli.options import Json
from rl_training.cli.output import confirm, result_stream, write_result
from rl_training.errors import UserError

Folder = Annotated[Path, Parameter(help="The folder of the project; a new one, unless with --upgrade.")]
Upgrade = Annotated[
    bool, Parameter(help="Show what this version would write differently, and ask for each file whether to take it.")
]
Package = Annotated[
    str | None, Parameter(help="The name of the project's Python package (default: that of the folder).")
]
Wheel = Annotated[
    Path | None,
    Parameter(help="The wheel of rl_training that images install (default: the one that was installed)."),
]
Yes = Annotated[bool, Parameter(help="With --upgrade: take everything without asking.")]


def init(
    folder: Folder,
    *,
    upgrade: Upgrade = False,
    package: Package = None,
    wheel: Wheel = None,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Make a project of your own: a package with an environment, configs, deployments, and containers."""
    with result_stream() as out:
        if not upgrade:
            from rl_training.project.new_project import init as make_project

            made = make_project(folder, package=package, wheel=wheel)
            write_result(out, made.to_dict(), made.lines(), as_json=json)
            return 0
        if package is not None:
            raise UserError("--package names the package of a new project; with --upgrade it stays the same")
        from rl_training.project.upgrade import upgrade as upgrade_project

        result = upgrade_project(folder, _agree if yes else _ask, wheel=wheel)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def _agree(text: str, question: str) -> bool:
    print(f"{text}\n", file=sys.stderr)
    return True


def _ask(text: str, question: str) -> bool:
    return confirm(text, question, "use --yes to take everything")
