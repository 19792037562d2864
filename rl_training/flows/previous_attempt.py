"""The run that an earlier attempt at this flow run had opened, here or on another machine, and the way back into it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.runtime import flow_run

from rl_training import run_layout
from rl_training.errors import CheckpointError
from rl_training.system import paths
from rl_training.tracking import json_files
from rl_training.tracking.record_schemas import Description

if TYPE_CHECKING:
    from rl_training.config.settings import TrainConfig
    from rl_training.runtime.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

FLOW_RUN_TAG = "prefect.flow_run_id"
"""Of the run in MLflow: the flow run that trained it last."""


def remember(run_dir: Path) -> None:
    """Notes on this machine which run this flow run has opened."""
    index = _index()
    if index is not None:
        json_files.write_bytes(index, str(run_dir).encode())


def is_first_attempt() -> bool:
    """Returns whether no earlier attempt at this flow run can have opened a run."""
    return flow_run.id is None or (flow_run.run_count <= 1 and _remembered() is None)


def has_begun() -> bool:
    """Returns whether an earlier attempt at this flow run has opened a run, here or on another machine.

    Raises:
        TrackingError: MLflow can't be reached.
    """
    from rl_training.tracking.attempts import find_run_by_tag

    if flow_run.id is None:
        return False
    return _remembered() is not None or (
        flow_run.run_count > 1 and find_run_by_tag(FLOW_RUN_TAG, str(flow_run.id)) is not None
    )


def earlier_checkpoint(config: TrainConfig) -> Checkpoint | None:
    """Returns the newest good checkpoint of this flow run's own run, which this process has then taken over.

    Prefect starts a flow run a second time where its first process failed, was cancelled, or is thought dead. Should
    that one only sleep, it writes nothing to the run any more when it wakes.

    Args:
        config: The settings of this attempt.

    Returns:
        The checkpoint, in the run's own directory where that is on this machine, else downloaded; None where this is
        the first attempt, or none came as far as a checkpoint.

    Raises:
        NoProgress: The attempts before this one came to nothing.
        TrackingError: MLflow can't be reached.
    """
    from rl_training.runs.locks import take_over
    from rl_training.runtime.checkpoint import newest_good
    from rl_training.tracking.attempts import find_run_by_tag, get_attempts, require_progress
    from rl_training.tracking.checkpoint_sources import download_checkpoint

    run_dir = _remembered()
    if is_first_attempt():
        return None
    run = find_run_by_tag(FLOW_RUN_TAG, str(flow_run.id))
    if run is not None:
        last = Path(run.data.tags.get("run_dir", ""))  # where the newest attempt had it
        run_dir = last if _is_of_this_flow_run(last) else None
    checkpoint = None
    if run_dir is not None and _is_of_this_flow_run(run_dir):
        take_over(run_dir)
        checkpoint, _ = newest_good(run_dir / run_layout.CHECKPOINTS)
    if checkpoint is None and run is not None:
        try:
            checkpoint = download_checkpoint(run.info.run_id)
        except CheckpointError as error:
            logger.warning("%s; this flow run begins anew", error)
    if checkpoint is not None and checkpoint.num_timesteps < config.total_timesteps:
        require_progress(get_attempts(run) if run is not None else [], checkpoint.num_timesteps)
    return checkpoint


def as_before(config: TrainConfig, checkpoint: Checkpoint) -> TrainConfig:
    """Returns this attempt's settings with the run's own directory.

    The settings are those of the flow run's parameters, since a checkpoint's have no plain secrets.
    """
    from rl_training.experiment.loading import recorded_settings

    return config.model_copy(update={"run_dir": recorded_settings(checkpoint).run_dir})


def _is_of_this_flow_run(run_dir: Path) -> bool:
    description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
    return description is not None and bool(description["tags"].get(FLOW_RUN_TAG) == str(flow_run.id))


def _index() -> Path | None:
    """The file that remembers the run of this flow run; None outside of a flow run."""
    return paths.home() / "flow_runs" / str(flow_run.id) if flow_run.id is not None else None


def _remembered() -> Path | None:
    index = _index()
    return Path(index.read_text(encoding="utf-8")) if index is not None and index.exists() else None
