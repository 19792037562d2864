"""Finding and resuming the run that an earlier attempt of this flow run opened, on this machine or another."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.runtime import flow_run

from rl_training import run_layout
from rl_training.errors import CheckpointError
from rl_training.system import paths
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import FLOW_RUN
from rl_training.tracking.record_schemas import Description

if TYPE_CHECKING:
    from rl_training.config.settings import TrainConfig
    from rl_training.runtime.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


def record_run_dir(run_dir: Path) -> None:
    """Records on this machine which run this flow run has opened."""
    path = _find_record()
    if path is not None:
        json_files.write_bytes(path, str(run_dir).encode())


def is_first_attempt() -> bool:
    """Returns whether no earlier attempt of this flow run can have opened a run."""
    return flow_run.id is None or (flow_run.run_count <= 1 and _read_run_dir() is None)


def has_opened_run() -> bool:
    """Returns whether an earlier attempt of this flow run has opened a run, on this machine or another.

    Raises:
        TrackingError: MLflow can't be reached.
    """
    from rl_training.tracking.attempts import find_run_by_tag

    if flow_run.id is None:
        return False
    return _read_run_dir() is not None or (
        flow_run.run_count > 1 and find_run_by_tag(FLOW_RUN, str(flow_run.id)) is not None
    )


def take_over_checkpoint(config: TrainConfig) -> Checkpoint | None:
    """Takes over the run of an earlier attempt of this flow run, and returns its newest good checkpoint.

    Prefect starts a flow run again if its first process failed, was cancelled, or seems to be dead. If that process was
    only suspended, it can't write to the run any more once this one has taken the run over.

    Args:
        config: The settings of this attempt.

    Returns:
        The checkpoint, in the run's directory if that is on this machine, or else downloaded. None if this is the first
        attempt, or if no attempt has written a checkpoint.

    Raises:
        NoProgress: The previous attempts made no progress.
        TrackingError: MLflow can't be reached.
    """
    from rl_training.runs.locks import take_over
    from rl_training.runtime.checkpoint import newest_good
    from rl_training.runtime.loop_parts.periodic_evaluation import has_reached_return
    from rl_training.tracking.attempts import find_run_by_tag, get_attempts, require_progress
    from rl_training.tracking.checkpoint_sources import download_checkpoint

    run_dir = _read_run_dir()
    if is_first_attempt():
        return None
    run = find_run_by_tag(FLOW_RUN, str(flow_run.id))
    if run is not None:
        last = Path(run.data.tags.get("run_dir", ""))  # the directory of the newest attempt
        run_dir = last if _is_of_this_flow_run(last) else None
    checkpoint = None
    if run_dir is not None and _is_of_this_flow_run(run_dir):
        take_over(run_dir)
        checkpoint, _ = newest_good(run_dir / run_layout.CHECKPOINTS)
    if checkpoint is None and run is not None:
        try:
            checkpoint = download_checkpoint(run.info.run_id)
        except CheckpointError as error:
            logger.warning("%s; this flow run starts from scratch", error)
    if checkpoint is None or has_reached_return(checkpoint):
        return checkpoint
    if checkpoint.num_timesteps < config.total_timesteps:
        require_progress(get_attempts(run) if run is not None else [], checkpoint.num_timesteps)
    return checkpoint


def keep_run_dir(config: TrainConfig, checkpoint: Checkpoint) -> TrainConfig:
    """Returns this attempt's settings with the `run_dir` of the checkpoint's run.

    All other settings come from the flow run's parameters, because those in a checkpoint contain no plain secrets.
    """
    from rl_training.experiment.loading import recorded_settings

    return config.model_copy(update={"run_dir": recorded_settings(checkpoint).run_dir})


def _is_of_this_flow_run(run_dir: Path) -> bool:
    description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
    return description is not None and bool(description["tags"].get(FLOW_RUN) == str(flow_run.id))


def _find_record() -> Path | None:
    """Returns the file that records the run of this flow run; None outside a flow run."""
    return paths.home() / "flow_runs" / str(flow_run.id) if flow_run.id is not None else None


def _read_run_dir() -> Path | None:
    path = _find_record()
    return Path(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None
