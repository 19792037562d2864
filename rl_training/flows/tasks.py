"""The tasks that the flows chain: guard, validate, fetch, train, evaluate, promote, report; monitor and roll back.

Each is a few lines around what the library offers; none is served from a cache, since none is a pure function. What a
retry can't change (settings, a refused environment, a NaN) is never retried.
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
from rl_training.flows.champion_events import publish_monitoring, publish_promotion, publish_rollback
from rl_training.flows.missed_schedules import is_scheduled
from rl_training.flows.supervised_training import FlowReporter, supervise
from rl_training.flows.training_run import OpenRun

if TYPE_CHECKING:
    from rl_training.api.promotion import PromotionResult
    from rl_training.api.retraining import Start
    from rl_training.tracking.checkpoint_sources import Wanted


def may_pass(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a task's error may pass: whatever is not of the user's making or the run's, and a server that is away."""
    error = state.data
    return isinstance(error, EnvironmentFault | TrackingError) or not isinstance(error, UserError | RunFailed)


def may_pass_in_training(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether an error of training may pass: a fault of the environment or of the disk. A mistake in code stays."""
    return isinstance(state.data, EnvironmentFault | CheckpointNotWritten | OSError)


@task(name="validate", cache_policy=NO_CACHE)
def validate(config: TrainConfig) -> dict[str, Any]:
    """Checks that the environment keeps its contract and that the algorithm can train on it.

    Raises:
        EnvironmentRefused: A line for every reason.
    """
    from rl_training.api.training import check_environment

    report = check_environment(config)
    for finding in report.warnings:
        get_run_logger().warning(finding.line())
    return {"steps_per_second": report.steps_per_second, "warnings": len(report.warnings)}


@task(name="guard", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=may_pass)
def guard(config: TrainConfig, start: Start, min_hours: float) -> dict[str, Any]:
    """Says whether a retraining is due and from what it starts; see `plan_retraining`.

    Raises:
        CheckpointError: The champion's weights are asked for, and it is another algorithm's.
        TrackingError: MLflow can't be reached.
    """
    from rl_training.api.retraining import plan_retraining

    plan = plan_retraining(config, start=start, min_hours=min_hours)
    get_run_logger().info(plan.reason)
    return asdict(plan)


@task(name="fetch", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=may_pass)
def fetch(source: str, fine_tune: bool = False, to_resume: bool = False) -> str:
    """Brings a checkpoint here, verified, and returns its directory; for fine-tuning, without its replay buffer.

    Raises:
        AlreadyTraining: Another process trains the run that is to be resumed as it is (`to_resume`).
        CheckpointError: There is no good checkpoint.
        TrackingError: MLflow can't be reached, or does not know the source.
    """
    from rl_training.tracking.checkpoint_sources import download_checkpoint

    wanted: Wanted = "weights" if fine_tune else "everything"
    return str(download_checkpoint(source, wanted=wanted, to_resume=to_resume).path)


@task(
    name="train",
    cache_policy=NO_CACHE,
    retries=5,
    retry_delay_seconds=[1, 2, 5, 10, 30],
    retry_condition_fn=may_pass_in_training,
)
def train(run: OpenRun) -> dict[str, Any]:
    """Trains in a helper thread, a retry from the newest checkpoint; this thread reports and hears a cancel.

    Raises:
        NoProgress: This attempt broke at the checkpoint that it began with.
        RunTakenOver: Another process has the run; see `rl_training.flows.previous_attempt`.
    """
    from rl_training.runs.locks import require_not_taken_over

    require_not_taken_over(run.run_dir)
    start = run.newest_step()
    trainer = run.next_trainer()
    total = trainer.config.total_timesteps
    report_progress = FlowReporter(
        run.progress, total_timesteps=total, run_uid=trainer.run.run_uid, page=run.session.ui
    )

    def meanwhile() -> None:
        require_not_taken_over(run.run_dir)
        report_progress()

    try:
        result = supervise(trainer.train, stop=run.stop, meanwhile=meanwhile)
    except (EnvironmentFault, CheckpointNotWritten, OSError) as error:
        if run.newest_step() > start:
            raise
        raise NoProgress(f"no new checkpoint since step {start:,}, so there is no other try: {error}") from error
    assert result.checkpoint is not None  # training ends with one
    return {
        "num_timesteps": result.num_timesteps,
        "checkpoint": str(result.checkpoint),
        "best_checkpoint": str(result.best_checkpoint or result.checkpoint),
        "stop_reason": result.stop_reason,
        "steps_per_second": result.steps_per_second,
        "cpu_seconds": result.cpu_seconds,
    }


@task(name="evaluate", cache_policy=NO_CACHE, retries=1, retry_delay_seconds=1, retry_condition_fn=may_pass_in_training)
def evaluate(run: OpenRun, checkpoint: str) -> dict[str, Any]:
    """Plays the held-out episodes with a checkpoint's policy and records them with the run."""
    from rl_training.api.judging import judge
    from rl_training.runtime.workflows import resolve_local_checkpoint

    opened = resolve_local_checkpoint(checkpoint)
    return judge(opened, run.config, run.run_dir, run.session.callback).to_dict()


@task(name="promote", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=may_pass)
def promote(run: OpenRun, checkpoint: str) -> dict[str, Any]:
    """Registers a checkpoint and lets the gate of the settings decide whether it becomes the champion."""
    from rl_training.promotion.promote import promote as decide
    from rl_training.runtime.workflows import resolve_local_checkpoint

    run_id = run.session.run_id
    assert run_id is not None  # a flow's run is tracked before it trains
    return _decided(decide(resolve_local_checkpoint(checkpoint), run.config, run_id=run_id), link=False)


@task(
    name="promote-candidate",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=may_pass,
)
def promote_candidate(
    candidate: str, overrides: Overrides, force: str | None, allow_modules: Collection[str]
) -> dict[str, Any]:
    """Registers whatever is offered and lets the gate decide; see `rl_training.api.promotion.promote_candidate`."""
    from rl_training.api.promotion import promote_candidate as decide

    return _decided(decide(candidate, overrides, force=force, allow_modules=allow_modules), link=True)


def _decided(result: PromotionResult, *, link: bool) -> dict[str, Any]:
    get_run_logger().info("%s: %s", result.verdict.kind, "; ".join(result.verdict.reasons))
    publish_promotion(result, link=link)
    return result.to_dict()


@task(name="monitor", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=may_pass)
def monitor(source: str, overrides: Overrides, episodes: int | None, allow_modules: Collection[str]) -> dict[str, Any]:
    """Plays fresh episodes and compares them with the promotion; see `rl_training.promotion.monitoring.monitor`.

    The evaluation is the flow run's own: each try of it plays the same episodes, and none where they are on record.

    Returns:
        The result, or `skipped` alone: why a schedule has nothing to play.
    """
    from rl_training.promotion.monitoring import monitor as play

    evaluation_id = None if flow_run.id is None else str(flow_run.id)
    try:
        result = play(source, overrides, episodes=episodes, evaluation_id=evaluation_id, allow_modules=allow_modules)
    except NoChampion as none:
        if not is_scheduled():
            raise
        return {"skipped": str(none)}
    get_run_logger().info("%s", "; ".join(result.drop.reasons))
    publish_monitoring(result)
    return result.to_dict()


@task(name="roll-back", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=may_pass)
def roll_back_champion(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the champion before the one that has dropped champion again.

    Raises:
        UserError: There is none, or another version is champion by now.
    """
    from rl_training.api.promotion import roll_back

    reason = f"evaluation {evaluation['number']}: {'; '.join(evaluation['reasons'])}"
    result = roll_back(evaluation["model"], reason=reason, version=evaluation["version"]).to_dict()
    publish_rollback(result)
    return result


@task(name="report", cache_policy=NO_CACHE, retries=1, retry_delay_seconds=1)
def report(run: OpenRun, summary: Mapping[str, Any]) -> None:
    """Writes the report: a Markdown artifact of the flow run, and a file with the MLflow run."""
    from rl_training.api.markdown_report import report_text

    text = report_text(summary)
    run.session.log_artifact("report.md", text)
    create_markdown_artifact(text, key="training-report", description=f"Run {summary['run_uid']}")
