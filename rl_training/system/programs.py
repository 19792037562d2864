"""Names the programs of this Python installation as a shell starts them, for messages that say what to type next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """Returns the command that starts a program that is installed beside this Python.

    Args:
        name: `rl-training` or `mlflow`.

    Returns:
        The name if `PATH` leads to this very program, else its path, quoted for a shell.
    """
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not ours.is_file() or (found is not None and Path(found).samefile(ours)):
        return name
    return shlex.quote(str(ours))
