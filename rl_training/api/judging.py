"""Judging a run's policy on held-out episodes, and filming one of them."""

from __future__ import annotations

import logging
from pathlib import Path

from rl_training import run_layout
from rl_training.config.settings import TrainConfig
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog

logger = logging.getLogger(__name__)


def judge(
    checkpoint: Checkpoint, config: TrainConfig, run_dir: Path, log: MetricLog, stop: StopFlag | None = None
) -> EvaluationResult:
    """Plays the held-out episodes with a checkpoint's policy, records them with the run, and films the first of them.

    Args:
        checkpoint: Verified.
        config: The run's settings.
        run_dir: The run's directory, among whose artifacts the evaluation and the film are written.
        log: The run's record.
        stop: Polled between steps.

    Raises:
        EnvironmentFault: An environment broke its contract.
        StopTraining: `stop` was set before the episodes were played.
    """
    evaluation = evaluate_checkpoint(checkpoint, config=config, stop=stop)
    log.log(checkpoint.num_timesteps, evaluation.metrics("heldout"), "heldout")
    artifacts = run_dir / run_layout.ARTIFACTS
    json_files.write_json(artifacts / run_layout.HELD_OUT, evaluation.to_dict())
    if config.evaluation.video:
        _film(checkpoint, config, evaluation.seeds[0], artifacts / run_layout.EPISODE, stop)
    return evaluation


def _film(checkpoint: Checkpoint, config: TrainConfig, seed: int, path: Path, stop: StopFlag | None) -> None:
    """Writes a film of an episode where the environment can be rendered; without one, nothing is lost."""
    from rl_training.api.episode_film import can_be_filmed, film_episode  # and with it Pillow

    try:
        if can_be_filmed(config):
            json_files.write_bytes(path, film_episode(load_policy(checkpoint), config, seed, stop))
    except StopTraining:
        return
    except Exception as error:  # whatever a renderer does; the episodes were played without it
        logger.warning("there is no film of an episode (`evaluation.video`): %s", error)
