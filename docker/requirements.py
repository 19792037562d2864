#!/usr/bin/env python3
"""Prints what pyproject.toml requires, with the extras that are named, so that an image can install it before the code.

requirements.py EXTRA ... reads the pyproject.toml of the working directory.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Prints one requirement a line."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = [requirement for extra in sys.argv[1:] for requirement in project["optional-dependencies"][extra]]
    print(*project["dependencies"], *extras, sep="\n")


if __name__ == "__main__":
    main()
