"""The names of everything that a run directory contains.

`docs/checkpoints.md` shows the tree. What is inside a checkpoint is named in `runtime/checkpoint/manifest.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

CONFIG = "config.yaml"
"""The resolved settings, in the run directory and in each checkpoint."""
METADATA = "metadata.json"
"""The run's identity, versions, commit and command."""

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints."""
STEP = "step_"
"""Prefix of a checkpoint's directory in `CHECKPOINTS`; the step follows."""
BEST = "best.json"
"""In `CHECKPOINTS`: which checkpoint has the best periodic evaluation."""
KEPT = "kept.json"
"""In `CHECKPOINTS`: checkpoints at which a trial of a sweep paused, and which other trials may fork."""
REPLAY = "replay"
"""The folder of the replay buffer's shards, and the key that lists them in a manifest's `extra`."""
STAGING = ".tmp-"
"""Prefix of a file or directory that is being written or removed; the id of the process that does so follows."""
REMOVED = ".removed-"
"""Prefix of a run directory that `rl-training clean` is removing; if it is interrupted, the next one continues."""

METRICS = "metrics.jsonl"
"""Every metric of the run; MLflow holds a thinned copy."""
SYSTEM_METRICS = "system_metrics.jsonl"
"""The load of the machine, if that is logged; same form as `METRICS`."""
TRACKING = "tracking.json"
"""The run's description for the shipper: experiment, name, parameters, tags."""
MLFLOW = "mlflow.json"
"""The address of the run in MLflow."""
SHIPPED = "shipped.json"
"""The progress of sending the run to MLflow."""
STATUS = "status.json"
"""The end of the run and its reason; the file is missing while the run trains."""

ARTIFACTS = "artifacts"
"""The folder whose files all go to MLflow under the same names."""
EVALUATIONS = "evaluations"
"""In `ARTIFACTS`: the folder of periodic evaluations with their episodes."""
HELD_OUT = "evaluation.json"
"""In `ARTIFACTS`: the held-out evaluation with all its episodes."""
EPISODE = "evaluation_episode.gif"
"""In `ARTIFACTS`: the first of those episodes as a film."""

RUN_LOCK = "training.lock"
"""Held while the run trains."""
SHIPPER_LOCK = "shipper.lock"
"""Held by the process that sends the run to MLflow."""
SHIPPER_LOG = "shipper.log"
"""The output of the process that sends the run to MLflow."""
MODEL_QUEUE = ".models"
"""The folder of uploaded checkpoints whose logged models have yet to be made."""
UPLOADS = ".shipping"
"""The folder that keeps the files of a checkpoint while they are uploaded."""
SINKS = "sinks"
"""The folder of the processes that pass metrics on to other sinks: their progress, locks and logs."""
SINKS_RUN = "run.json"
"""In `SINKS`: the run as sinks are told about it, and their names."""
TENSORBOARD = "tensorboard"
"""The folder of TensorBoard's event files."""

FOLDERS = (CHECKPOINTS, REPLAY, ARTIFACTS, MODEL_QUEUE, UPLOADS, SINKS, TENSORBOARD)
"""Every folder of a run directory."""
FILES = (
    CONFIG, METADATA, METRICS, SYSTEM_METRICS, TRACKING, MLFLOW, SHIPPED, STATUS, RUN_LOCK, "training.holder",
    SHIPPER_LOCK, "shipper.holder", SHIPPER_LOG,
)  # fmt: skip
"""Every file of a run directory, those in folders aside."""


def checkpoint_name(num_timesteps: int) -> str:
    """Returns the name of a checkpoint's directory."""
    return f"{STEP}{num_timesteps:012d}"


def find_run_directory(path: str | Path) -> Path:
    """Returns the absolute run directory of a checkpoint, of a folder of checkpoints, or of itself."""
    path = Path(os.path.abspath(path))  # noqa: PTH100, because `..` must go and links must stay
    folder = path if path.name == CHECKPOINTS else path.parent
    return folder.parent if folder.name == CHECKPOINTS else path
