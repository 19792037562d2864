"""The steps that every training flow shares, once its run can be opened: train, evaluate, promote, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import RunFailed
from rl_training.flows.tasks import evaluate, promote, report, train
from rl_training.flows.training_run import MakeTrainer, OpenRun, job_name, open_run, owner

logger = logging.getLogger(__name__)


@contextmanager
def hold_job(config: TrainConfig) -> Iterator[None]:
    """Keeps other processes from training the same job within the block.

    Args:
        config: The settings; their `job`, or else the deployment's name, says what must not train twice at a time.

    Raises:
        AlreadyTraining: Another process trains it; names it.
    """
    from rl_training.runs.locks import job_lock

    with job_lock(config.job or job_name(), owner()):
        yield


def train_and_judge(
    config: TrainConfig, make_trainer: MakeTrainer, tags: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Opens the run and takes it through its tasks; its job is held.

    Args:
        config: The settings.
        make_trainer: Makes the trainer, and with it the run; not called where this flow run has trained before.
        tags: Put on the MLflow run, besides those of every flow.

    Returns:
        The summary; see `summarize`.
    """
    with open_run(config, make_trainer, tags or {}) as run:
        training = train(run)
        best = training["best_checkpoint"]
        evaluation = evaluate(run, best)
        promotion = promote(run, best) if run.config.promotion.enabled else None
        summary = summarize(run, training, evaluation, promotion)
        report(run, summary, return_state=True)  # a report that can't be written does not undo a training
        shipped = run.session.finish("FINISHED", stop_reason=training["stop_reason"])
        return {**summary, "unsent": shipped.message}


def summarize_stopped(run: OpenRun) -> dict[str, Any]:
    """Returns the summary of a run that a signal has stopped, at its newest checkpoint."""
    state = run.trainer.state
    checkpoint = state.checkpoint
    if checkpoint is None:
        raise RunFailed(f"the run in {run.run_dir} was stopped before its first checkpoint was whole")
    training = {
        "num_timesteps": checkpoint.num_timesteps,
        "checkpoint": str(checkpoint.path),
        "best_checkpoint": str((state.best_checkpoint or checkpoint).path),
        "stop_reason": "signal",
        "steps_per_second": run.trainer.metrics.get("time/steps_per_second"),
        "cpu_seconds": None,
    }
    shipped = run.session.finish("KILLED", stop_reason="signal")
    return {**summarize(run, training, None, None), "unsent": shipped.message}


def summarize(
    run: OpenRun,
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    promotion: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns what a run came to, as JSON: a flow's result and the last line of `rl-training flow train --json`.

    Args:
        run: The run.
        training: What the task `train` returned.
        evaluation: Held-out, of the best checkpoint, without its single episodes; None where there was none.
        promotion: What the task `promote` returned; None where promotion is off or was not reached.
    """
    from rl_training.runtime.checkpoint import open_checkpoint
    from rl_training.runtime.evaluation import evaluation_numbers

    if evaluation is not None:
        evaluation = {"checkpoint": training["best_checkpoint"], **evaluation_numbers(evaluation)}
    return {
        "run_id": run.session.run_id,
        "run_uid": run.session.run_uid,
        "run_dir": str(run.run_dir),
        "algo": run.config.algo,
        "env_id": run.config.env_id,
        **training,
        "policy_sha256": open_checkpoint(training["checkpoint"], policy_only=True).policy_sha256,
        "evaluation": evaluation,
        "promotion": promotion,
        "inexact": run.trainer.inexact,
        "ui_command": run.session.ui,
    }
