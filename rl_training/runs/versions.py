"""The versions that a run's numbers depend on."""

from __future__ import annotations

import platform
from importlib.metadata import version

from rl_training import __version__

PACKAGES = ("torch", "numpy", "gymnasium")


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package, and of the packages that compute."""
    return {
        "python": platform.python_version(),
        "rl_training": __version__,
        **{name: version(name) for name in PACKAGES},
    }
