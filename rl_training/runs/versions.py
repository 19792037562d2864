"""The versions that the results of a run depend on: of packages, and of the code around the command."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from typing import Any

from rl_training import __version__

COMMIT_VARIABLE = "RL_TRAINING_GIT_COMMIT"
"""Set by docker/Dockerfile to the commit of the image, with `-dirty` if files differed from it."""

PACKAGES = ("torch", "numpy", "gymnasium")


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package, and of the packages that compute the results."""
    return {
        "python": platform.python_version(),
        "rl_training": __version__,
        **{name: _find_version(name) for name in PACKAGES},
    }


@cache
def _find_version(package: str) -> str:
    return version(package)  # reads a file; every checkpoint holds the versions


def find_commit() -> dict[str, Any] | None:
    """Returns the commit of the image, or of the working folder's repository, and whether files differ from it."""
    if built_from := re.fullmatch(r"([0-9a-f]{40})(-dirty)?", os.environ.get(COMMIT_VARIABLE, "")):
        return {"commit": built_from[1], "dirty": built_from[2] is not None}
    try:
        commit = _run_git("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_run_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or no commit in it
        return None


def _run_git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
