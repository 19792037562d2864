"""The held-out evaluation at the end of a run, and a film of one of its episodes."""

from __future__ import annotations

import logging
from pathlib import Path

from rl_training import run_layout
from rl_training.api.films.filmed_env import can_be_filmed
from rl_training.config.named_modules import allowing, list_modules
from rl_training.config.settings import TrainConfig
from rl_training.runs.locks import require_not_taken_over
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog

logger = logging.getLogger(__name__)


def evaluate_held_out(
    checkpoint: Checkpoint, config: TrainConfig, run_dir: Path, log: MetricLog, stop: StopFlag | None = None
) -> EvaluationResult:
    """Evaluates a checkpoint's policy on held-out episodes, logs the result, and films the first episode.

    Args:
        checkpoint: A verified checkpoint.
        config: The run's settings.
        run_dir: The run's directory; the evaluation and the film are added to its artifacts.
        log: The run's metric log.
        stop: Polled between steps.

    Raises:
        EnvironmentFault: An environment violated its contract.
        RunTakenOver: Another process has taken the run over; nothing is written.
        StopTraining: `stop` was set before all episodes were played.
    """
    evaluation = evaluate_checkpoint(checkpoint, config=config, stop=stop)
    require_not_taken_over(run_dir)  # the log checks it only for values that it does not have yet
    log.log(checkpoint.num_timesteps, evaluation.metrics("heldout"), "heldout")
    artifacts = run_dir / run_layout.ARTIFACTS
    json_files.write_json(artifacts / run_layout.HELD_OUT, evaluation.to_dict())
    if config.evaluation.video:
        _film(checkpoint, config, evaluation.seeds[0], artifacts / run_layout.EPISODE, stop)
    return evaluation


def _film(checkpoint: Checkpoint, config: TrainConfig, seed: int, path: Path, stop: StopFlag | None) -> None:
    """Writes a film of an episode if the environment can be rendered; an error is logged and otherwise ignored."""
    from rl_training.api.films.episode_film import film_episode  # imports Pillow

    try:
        if can_be_filmed(config):
            with allowing(list_modules(config).values()):
                policy = load_policy(checkpoint)
            json_files.write_bytes(path, film_episode(policy, config, seed, stop))
    except StopTraining:
        return
    except Exception as error:  # a renderer may raise anything, and the evaluation does not need it
        logger.warning("could not film an episode (`evaluation.video`): %s", error)
