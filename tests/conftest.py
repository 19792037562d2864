"""Puts the tests' own environments and plug-ins on the path, of child processes too, and keeps runs out of the home."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PATHS = (str(TESTS), str(TESTS.parent))

for path in PATHS:
    if path not in sys.path:
        sys.path.insert(0, path)
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session", autouse=True)
def rl_training_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of the test session's own."""
    home = tmp_path_factory.mktemp("home")
    previous = os.environ.get("RL_TRAINING_HOME")
    os.environ["RL_TRAINING_HOME"] = str(home)
    yield home
    if previous is None:
        del os.environ["RL_TRAINING_HOME"]
    else:
        os.environ["RL_TRAINING_HOME"] = previous
