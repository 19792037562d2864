"""The steps that all flows that train have in common: open the run, train, evaluate, promote, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import RunFailed
from rl_training.flows.tasks import evaluate, promote, report, train
from rl_training.flows.tracked_run import MakeTrainer, TrackedRun, get_job_name, get_lock_owner, open_run

logger = logging.getLogger(__name__)


@contextmanager
def hold_job(config: TrainConfig) -> Iterator[None]:
    """Prevents other processes from training the same job within the block.

    Args:
        config: The settings; the job is their `job` or, if that is not set, the deployment's name.

    Raises:
        AlreadyTraining: Another process is training the job; the message names the process.
    """
    from rl_training.runs.locks import job_lock

    with job_lock(config.job or get_job_name(), get_lock_owner()):
        yield


def run_pipeline(
    config: TrainConfig, make_trainer: MakeTrainer, tags: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Opens the run and runs the tasks. Call it within `hold_job`.

    Args:
        config: The settings.
        make_trainer: Makes the trainer and its run; not called if an earlier attempt of this flow run has trained.
        tags: Tags for the MLflow run, besides those of every flow.

    Returns:
        The summary; see `summarize`.
    """
    with open_run(config, make_trainer, tags or {}) as run:
        training = _train(run)
        best = training["best_checkpoint"]
        evaluation = evaluate(run, best)
        promotion = promote(run, best) if run.config.promotion.enabled else None
        summary = summarize(run, training, evaluation, promotion)
        report(run, summary, return_state=True)  # a report that can't be written must not fail the flow
        return {**summary, "unsent": run.finish("FINISHED", stop_reason=training["stop_reason"])}


def _train(run: TrackedRun) -> dict[str, Any]:
    """Runs the task `train`, and raises what has interrupted it."""
    state = train(run, return_state=True)
    if run.interruption is not None:
        raise run.interruption
    training = state.result()
    assert isinstance(training, dict)
    return training


def summarize_stopped(run: TrackedRun) -> dict[str, Any]:
    """Ends the record of a run that a signal has stopped, and returns its summary.

    Raises:
        RunFailed: The run has no complete checkpoint.
    """
    state = run.trainer.state
    checkpoint = state.checkpoint
    if checkpoint is None:
        raise RunFailed(f"the run in {run.run_dir} was stopped before its first checkpoint was complete")
    training = {
        "num_timesteps": checkpoint.num_timesteps,
        "checkpoint": str(checkpoint.path),
        "best_checkpoint": str((state.best_checkpoint or checkpoint).path),
        "stop_reason": "signal",
        "steps_per_second": run.trainer.metrics.get("time/steps_per_second"),
        "cpu_seconds": None,
    }
    unsent = run.finish("KILLED", stop_reason="signal")
    return {**summarize(run, training, None, None), "unsent": unsent}


def summarize(
    run: TrackedRun,
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    promotion: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the summary of a run as JSON: the flow's result, which `rl-training flow train --json` prints.

    Args:
        run: The run.
        training: The result of the task `train`.
        evaluation: The held-out evaluation of the best checkpoint, or None if the run was stopped before it.
        promotion: The result of the task `promote`, or None if promotion is off or the run was stopped before it.
    """
    from rl_training.runs.health_warnings import HEALTH
    from rl_training.runs.metadata import read_metadata
    from rl_training.runtime.checkpoint import open_checkpoint
    from rl_training.runtime.evaluation import select_evaluation_numbers

    metadata = read_metadata(run.run_dir)
    validation = metadata.get("validation", {"warnings": []})
    if evaluation is not None:
        evaluation = {"checkpoint": training["best_checkpoint"], **select_evaluation_numbers(evaluation)}
    return {
        "run_id": run.session.run_id,
        "run_uid": run.session.run_uid,
        "run_dir": str(run.run_dir),
        "algo": run.config.algo,
        "env_id": run.config.env_id,
        **training,
        "policy_sha256": open_checkpoint(training["checkpoint"], policy_only=True).policy_sha256,
        "best_policy_sha256": open_checkpoint(training["best_checkpoint"], policy_only=True).policy_sha256,
        "evaluation": evaluation,
        "promotion": promotion,
        "inexact": run.trainer.inexact,
        "health": metadata.get(HEALTH, []),
        "warnings": [finding["message"] for finding in validation["warnings"]],
        "ui_command": run.session.ui,
    }
