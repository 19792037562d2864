#!/usr/bin/env python3
"""Prints the requirements in pyproject.toml with the given extras, so that an image can install them before the code.

requirements.py EXTRA ... reads the pyproject.toml of the working directory.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Prints one requirement per line."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = [requirement for extra in sys.argv[1:] for requirement in project["optional-dependencies"][extra]]
    print(*project["dependencies"], *extras, sep="\n")


if __name__ == "__main__":
    main()
