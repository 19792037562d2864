"""Environment variables for Prefect, which reads some of them when it is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.system import paths
from rl_training.system.environment_variables import set_environment

NO_ANALYTICS = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}


@contextmanager
def prepare_prefect() -> Iterator[None]:
    """Keeps Prefect from writing outside our home directory and from sending analytics, for imports in the block too.

    Whatever the user has set stays as it is. If the user has a Prefect home, Prefect uses that one, because its profile
    names the server to talk to.
    """
    ours = {name: value for name, value in NO_ANALYTICS.items() if name not in os.environ}
    theirs = ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_PROFILES_PATH")
    if not any(os.environ.get(name) for name in theirs) and not Path("~/.prefect").expanduser().exists():
        ours["PREFECT_HOME"] = str(paths.prefect_root())
    with set_environment(ours):
        yield
