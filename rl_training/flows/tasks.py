"""The tasks of the flows: guard, validate, fetch, train, evaluate, promote, report, monitor, roll back.

Each task is a thin wrapper around the library. Results are never cached, because no task is a pure function. Errors
that a retry can't change (wrong settings, a refused environment, a NaN) are never retried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled
from prefect.tasks import Task

from rl_training.config.parsing import Overrides
from rl_training.config.settings import TrainConfig
from rl_training.errors import (
    CheckpointNotWritten,
    EnvironmentFault,
    NoChampion,
    NoProgress,
    RunFailed,
    TrackingError,
    UserError,
)
from rl_training.flows.artifacts_and_events import publish_monitoring, publish_promotion, publish_rollback
from rl_training.flows.from_server.missed_schedules import is_scheduled
from rl_training.flows.supervised_training import FlowReporter, supervise
from rl_training.flows.tracked_run import TrackedRun

if TYPE_CHECKING:
    from rl_training.api.promotion import PromotionResult
    from rl_training.api.retraining import Start
    from rl_training.tracking.checkpoint_sources import Wanted


def is_worth_retrying(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Returns whether a retry may succeed; it can't if the user or the run itself caused the error."""
    error = state.data
    return isinstance(error, EnvironmentFault | TrackingError) or not isinstance(error, UserError | RunFailed)


def is_worth_training_again(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Returns whether another attempt to train may succeed: after a fault of the environment or the disk."""
    return isinstance(state.data, EnvironmentFault | CheckpointNotWritten | OSError)


RETRIED: Any = {
    "cache_policy": NO_CACHE,
    "retries": 2,
    "retry_delay_seconds": [2, 10],
    "retry_condition_fn": is_worth_retrying,
}
"""Options of the tasks that ask a server, and may find it away for a moment."""


@task(name="validate", cache_policy=NO_CACHE)
def validate(config: TrainConfig) -> dict[str, Any]:
    """Checks that the environment satisfies its contract and that the algorithm can train on it.

    Returns:
        The record of the validation for the run; see `ValidationReport.to_record`.

    Raises:
        EnvironmentRefused: The environment can't be trained on; the message has one line for each reason.
    """
    from rl_training.api.training import check_environment

    report = check_environment(config)
    for finding in report.warnings:
        get_run_logger().warning(finding.line())
    return report.to_record()


@task(name="guard", **RETRIED)
def guard(config: TrainConfig, start: Start, min_hours: float) -> dict[str, Any]:
    """Decides whether a retraining is due and which weights it starts from; see `plan_retraining`.

    Raises:
        CheckpointError: The retraining would start from the champion, which another algorithm has trained.
        TrackingError: MLflow can't be reached.
    """
    from rl_training.api.retraining import plan_retraining

    plan = plan_retraining(config, start=start, min_hours=min_hours)
    get_run_logger().info(plan.reason)
    return asdict(plan)


@task(name="fetch", **RETRIED)
def fetch(source: str, fine_tune: bool = False, to_resume: bool = False) -> str:
    """Downloads and verifies a checkpoint, and returns its directory; for fine-tuning, without the replay buffer.

    Raises:
        AlreadyTraining: `to_resume` is set, and another process is training the run.
        CheckpointError: There is no good checkpoint.
        TrackingError: MLflow can't be reached, or the source does not exist.
    """
    from rl_training.tracking.checkpoint_sources import download_checkpoint

    wanted: Wanted = "weights" if fine_tune else "everything"
    return str(download_checkpoint(source, wanted=wanted, to_resume=to_resume).path)


@task(
    name="train",
    cache_policy=NO_CACHE,
    retries=5,
    retry_delay_seconds=[1, 2, 5, 10, 30],
    retry_condition_fn=is_worth_training_again,
)
def train(run: TrackedRun) -> dict[str, Any] | State[Any]:
    """Trains in a helper thread; a retry resumes from the newest checkpoint. This thread reports progress.

    Returns:
        How training ended. If a cancel or a signal has stopped it, the state Cancelled, whose message says what was
        saved and how to continue; `run.interruption` is then what the flow has to raise again.

    Raises:
        NoProgress: This attempt failed before it wrote a new checkpoint.
        RunTakenOver: Another process has taken the run over; see `rl_training.flows.previous_attempt`.
        TrackingError: MLflow's local store can't be used, which has stopped training.
    """
    from rl_training.runs.locks import require_not_taken_over

    require_not_taken_over(run.run_dir)
    start = run.newest_step()
    trainer = run.next_trainer()
    total = trainer.config.total_timesteps
    report_progress = FlowReporter(
        run.progress,
        total_timesteps=total,
        run_uid=trainer.run.run_uid,
        find_page=lambda: run.session.known_ui,
    )

    def meanwhile() -> None:
        require_not_taken_over(run.run_dir)
        report_progress()

    try:
        result = supervise(trainer.train, stop=run.stop, meanwhile=meanwhile)
    except (EnvironmentFault, CheckpointNotWritten, OSError) as error:
        if run.newest_step() > start:
            raise
        raise NoProgress(f"no new checkpoint since step {start:,}, so training is not retried: {error}") from error
    except Exception:
        raise
    except BaseException as interruption:  # Prefect would call it a crash of this task
        run.interruption = interruption
        get_run_logger().info(message := run.describe_stop())
        return Cancelled(message=message)
    run.session.ready(run.stop)  # raises if MLflow can't be used, which has stopped training
    report_progress()  # a short training ends before its page is known
    assert result.checkpoint is not None  # training always ends with a checkpoint
    return {
        "num_timesteps": result.num_timesteps,
        "checkpoint": str(result.checkpoint),
        "best_checkpoint": str(result.best_checkpoint or result.checkpoint),
        "stop_reason": result.stop_reason,
        "lost_best": result.lost_best,
        "steps_per_second": result.steps_per_second,
        "cpu_seconds": result.cpu_seconds,
    }


@task(
    name="evaluate", cache_policy=NO_CACHE, retries=1, retry_delay_seconds=1, retry_condition_fn=is_worth_training_again
)
def evaluate(run: TrackedRun, checkpoint: str) -> dict[str, Any]:
    """Evaluates a checkpoint's policy on held-out episodes and adds the result to the run."""
    from rl_training.api.held_out_evaluation import evaluate_held_out
    from rl_training.runtime.workflows import resolve_local_checkpoint

    return evaluate_held_out(
        resolve_local_checkpoint(checkpoint), run.config, run.run_dir, run.session.callback
    ).to_dict()


@task(name="promote", **RETRIED)
def promote(run: TrackedRun, checkpoint: str) -> dict[str, Any]:
    """Registers a checkpoint and lets the gate decide whether it becomes the champion.

    Raises:
        RunTakenOver: Another process has taken the run over, and will decide.
    """
    from rl_training.promotion.promote import promote as decide
    from rl_training.runs.locks import require_not_taken_over
    from rl_training.runtime.workflows import resolve_local_checkpoint

    require_not_taken_over(run.run_dir)
    run_id = run.session.run_id
    assert run_id is not None  # a flow tracks its run before training
    return _publish_decision(decide(resolve_local_checkpoint(checkpoint), run.config, run_id=run_id), link=False)


@task(name="promote-candidate", **RETRIED)
def promote_candidate(
    candidate: str, overrides: Overrides, force: str | None, allow_modules: Collection[str]
) -> dict[str, Any]:
    """Registers a candidate and lets the gate decide; see `rl_training.api.promotion.promote_candidate`."""
    from rl_training.api.promotion import promote_candidate as decide

    return _publish_decision(decide(candidate, overrides, force=force, allow_modules=allow_modules), link=True)


def _publish_decision(result: PromotionResult, *, link: bool) -> dict[str, Any]:
    get_run_logger().info("%s: %s", result.verdict.kind, "; ".join(result.verdict.reasons))
    publish_promotion(result, link=link)
    return result.to_dict()


@task(name="monitor", **RETRIED)
def monitor(source: str, overrides: Overrides, episodes: int | None, allow_modules: Collection[str]) -> dict[str, Any]:
    """Plays new episodes and compares them with the promotion; see `rl_training.promotion.monitoring.monitor`.

    The flow run's id is the evaluation's: each attempt plays the same episodes, or none if they are already logged.

    Returns:
        The result. If a schedule started the flow run and there is no champion, `skipped` alone, with the reason.
    """
    from rl_training.promotion.monitoring import monitor as play

    evaluation_id = None if flow_run.id is None else str(flow_run.id)
    try:
        result = play(source, overrides, episodes=episodes, evaluation_id=evaluation_id, allow_modules=allow_modules)
    except NoChampion as error:
        if not is_scheduled():
            raise
        return {"skipped": str(error)}
    get_run_logger().info("%s", "; ".join(result.drop.reasons))
    publish_monitoring(result)
    return result.to_dict()


@task(name="roll-back", **RETRIED)
def roll_back_champion(evaluation: Mapping[str, Any], allow_modules: Collection[str]) -> dict[str, Any]:
    """Restores the champion before the one that plays worse.

    Raises:
        UserError: There is no previous champion, or another version has become champion in the meantime.
    """
    from rl_training.api.promotion import roll_back

    reason = f"evaluation {evaluation['number']}: {'; '.join(evaluation['reasons'])}"
    done = roll_back(evaluation["model"], reason=reason, version=evaluation["version"], allow_modules=allow_modules)
    publish_rollback(result := done.to_dict())
    return result


@task(name="report", cache_policy=NO_CACHE, retries=1, retry_delay_seconds=1)
def report(run: TrackedRun, summary: Mapping[str, Any]) -> None:
    """Writes the report as a Markdown artifact of the flow run, and into the MLflow run as Markdown and as HTML."""
    from rl_training.api.markdown_report import format_training_report
    from rl_training.run_report.report import FILE, make_report
    from rl_training.tracking.mlflow_links import get_version_url
    from rl_training.tracking.mlflow_store import resolve_tracking_uri

    promotion, url = summary["promotion"], None
    if promotion is not None:
        url = get_version_url(resolve_tracking_uri(), promotion["model"], promotion["version"])
    text = format_training_report(summary, url)
    run.session.log_artifact("report.md", text)
    create_markdown_artifact(text, key="training-report", description=f"MLflow run {summary['run_id']}")
    run.session.log_artifact(FILE, make_report(run.run_dir, summary["stop_reason"]))
