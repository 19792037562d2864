"""How the programs that belong to this Python are started, for messages that say what to type next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """Returns what a shell must be told to start a program that is installed beside this Python.

    Args:
        name: `rl-training` or `mlflow`.

    Returns:
        The name where `PATH` leads to that very program, else its path, quoted for a shell.
    """
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not ours.is_file() or (found is not None and Path(found).samefile(ours)):
        return name
    return shlex.quote(str(ours))
