"""The environment of a process that a benchmark starts."""

from __future__ import annotations

import os
from pathlib import Path


def environment(home: Path, **more: str) -> dict[str, str]:
    """Returns the environment variables of a measured process: one thread, a home of its own, no MLflow server.

    Args:
        home: `RL_TRAINING_HOME`.
        **more: Other variables.
    """
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RL_TRAINING_HOME": str(home)}
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"} | own | more
