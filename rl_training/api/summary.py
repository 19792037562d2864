"""The summary of a run, and its text, which all commands and flows share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.runs.health_warnings import read_health_warnings
from rl_training.runs.train_result import TrainResult
from rl_training.runtime.inexact_resumes import explain_inexact
from rl_training.system.programs import program

if TYPE_CHECKING:
    from rl_training.runtime.evaluation import EvaluationResult

ENDINGS = {
    "completed": "done",
    "return_reached": "ended early because evaluation.stop_at_return was reached",
    "paused": "paused by its sweep",
    "pruned": "pruned by its sweep",
}
"""How a run ended, in words; after other reasons it was stopped."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunSummary(TrainResult):
    """The result of `train` and `resume`: that of the training, the held-out evaluation, and where the record is.

    It prints as the summary that the command line shows.
    """

    checkpoint: Path
    """The directory of the final checkpoint."""
    policy_sha256: str
    """The hash of the final policy."""
    evaluation: EvaluationResult | None
    """The held-out evaluation of the final checkpoint; None if a signal stopped the run before."""
    run_id: str | None = None
    """The MLflow run id; None if the run is not tracked."""
    ui: str | None = None
    """The address of the run's page in MLflow, or the command that opens it."""
    inexact: Sequence[Mapping[str, Any]] = ()
    """Resumes that may not have been exact, and what callbacks did to the environments that no resume repeats; see
    `rl_training.runtime.inexact_resumes`."""
    health: Sequence[Mapping[str, Any]] = ()
    """The warnings about training that hold at its end; see `rl_training.runs.health_warnings`."""
    unsent: str = ""
    """A message about data that is not in MLflow yet, with what to do; empty if there is none."""
    resume_command: str | None = "resume"
    """The command of `rl-training`, with options, that resumes the run the way it was started."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary for JSON; the evaluation without its single episodes."""
        from rl_training.runtime.evaluation import select_evaluation_numbers

        return {
            "run_id": self.run_id,
            "run_uid": self.run_uid,
            "run_dir": str(self.run_dir),
            "checkpoint": str(self.checkpoint),
            "best_checkpoint": self.best_checkpoint and str(self.best_checkpoint),
            "num_timesteps": self.num_timesteps,
            "stop_reason": self.stop_reason,
            "steps_per_second": self.steps_per_second,
            "cpu_seconds": self.cpu_seconds,
            "policy_sha256": self.policy_sha256,
            "evaluation": self.evaluation
            and {"checkpoint": str(self.checkpoint), **select_evaluation_numbers(self.evaluation.to_dict())},
            "inexact": list(self.inexact),
            "lost_best": self.lost_best,
            "health": list(self.health),
            "ui_command": self.ui,
            "unsent": self.unsent,
        }

    def lines(self) -> list[str]:
        """Returns the summary as text."""
        return format_summary(self.to_dict(), resume=self.resume_command)

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def format_summary(summary: Mapping[str, Any], *, resume: str | None = "resume") -> list[str]:
    """Returns a run's summary as text.

    Args:
        summary: The summary as JSON: the result of `RunSummary.to_dict` or of a flow.
        resume: The command of `rl-training` that resumes a stopped run; None if only the session that defines its
            environment can.
    """
    lines = [_format_end(summary)]
    if summary["stop_reason"] == "signal":
        command = f"{program('rl-training')} {resume} {shlex.quote(summary['run_dir'])}"
        here = f"rl_training.resume({summary['run_dir']!r}) in this session, which defines its environment"
        lines.append(f"resume with: {here if resume is None else command}")
    lines += [f"not exact: {explain_inexact(entry)}" for entry in summary["inexact"]]
    lines += [f"warning: {warning}" for warning in read_health_warnings(summary)]
    if summary["evaluation"] is not None:
        lines.append(format_evaluation(summary["evaluation"]))
    if (promotion := summary.get("promotion")) is not None:
        from rl_training.promotion.decision import format_promotion_line

        lines += [format_promotion_line(promotion), *(f"  {reason}" for reason in promotion["reasons"])]
    lines += [f"run directory: {summary['run_dir']}", f"checkpoint: {summary['checkpoint']}"]
    if summary.get("best_checkpoint") not in (None, summary["checkpoint"]):
        lines.append(f"best checkpoint: {summary['best_checkpoint']}")
    if (lost := summary.get("lost_best")) is not None:
        lines.append(explain_lost_best(lost))
    if summary["run_id"] is not None:
        lines.append(f"MLflow run {summary['run_id']}: {summary['ui_command']}")
    return [*lines, *filter(None, [summary["unsent"]])]


def explain_lost_best(lost: Mapping[str, Any]) -> str:
    """Returns in words that the best checkpoint of a run is missing; see `TrainResult.lost_best`."""
    return (
        f"the best checkpoint, with a mean return of {lost['return_mean']:,.2f}, was missing when the run was resumed "
        f"at step {lost['num_timesteps']:,} ({lost['reason']}), and no later evaluation has reached that return"
    )


def format_evaluation(evaluation: Mapping[str, Any]) -> str:
    """Returns an evaluation as text, from the result of `rl_training.runtime.evaluation.select_evaluation_numbers`."""
    from rl_training.runs.evaluation_result import describe_other_numbers

    interval = ""
    if evaluation["ci_low"] is not None:
        interval = f" (95 % interval {evaluation['ci_low']:,.2f} to {evaluation['ci_high']:,.2f})"
    cut = f", of which {evaluation['cut']:,} cut at evaluation.max_episode_steps" if evaluation["cut"] else ""
    episodes = f"{evaluation['episodes']:,} held-out episode{'s' if evaluation['episodes'] > 1 else ''}"
    line = f"mean return {evaluation['return_mean']:,.2f}{interval} over {episodes}{cut}"
    doubt = f"\n  warning: {evaluation['warning']}" if evaluation.get("warning") else ""
    return "; ".join([line, *describe_other_numbers(evaluation)]) + doubt


def format_monitoring(result: Mapping[str, Any]) -> list[str]:
    """Returns the result of a champion's evaluation as text, from the result of `MonitoringResult.to_dict`."""
    lines = [format_evaluation(result["evaluation"])]
    if result["model"] is None:
        return lines
    role = "the champion" if result["is_champion"] else "not the champion"
    verdict = "DROPPED" if result["dropped"] else "no drop"
    return [
        *lines,
        f"{verdict}: registered model {result['model']}, version {result['version']}, {role}",
        *(f"  {reason}" for reason in result["reasons"]),
        f"evaluation {result['number']} of MLflow run {result['run_id']}: {result['ui_command']}",
    ]


def _format_end(summary: Mapping[str, Any]) -> str:
    how = ENDINGS.get(summary["stop_reason"], f"stopped by a {summary['stop_reason']}")
    speed = f", {summary['steps_per_second']:,.0f} steps/s" if summary["steps_per_second"] else ""
    return f"{how} at {summary['num_timesteps']:,} steps{speed}"
