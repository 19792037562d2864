"""What a run came to, in a few lines for people: the same words from every command and from the flows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rl_training.runtime.inexact_resumes import explain_resume
from rl_training.system.programs import program


def summary_lines(summary: Mapping[str, Any], *, resume: str = "resume") -> list[str]:
    """Returns a run's summary for people.

    Args:
        summary: As JSON, of `RunSummary.to_dict` or of a flow.
        resume: The command of `rl-training` by which a stopped run goes on.
    """
    lines = [_end(summary)]
    if summary["stop_reason"] == "signal":
        lines.append(f"go on with: {program('rl-training')} {resume} {shlex.quote(summary['run_dir'])}")
    lines += [f"not exact: resumed {explain_resume(resume)}" for resume in summary["inexact"]]
    if summary["evaluation"] is not None:
        lines.append(evaluation_line(summary["evaluation"]))
    if (promotion := summary.get("promotion")) is not None:
        from rl_training.promotion.decision import format_promotion_line

        lines += [format_promotion_line(promotion), *(f"  {reason}" for reason in promotion["reasons"])]
    lines += [f"run directory: {summary['run_dir']}", f"checkpoint: {summary['checkpoint']}"]
    if summary.get("best_checkpoint", summary["checkpoint"]) != summary["checkpoint"]:
        lines.append(f"best checkpoint: {summary['best_checkpoint']}")
    if summary["run_id"] is not None:
        lines.append(f"MLflow run {summary['run_id']}: {summary['ui_command']}")
    return [*lines, *filter(None, [summary["unsent"]])]


def evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """Returns how good a policy is; see `rl_training.runtime.evaluation.evaluation_numbers`."""
    interval = ""
    if evaluation["ci_low"] is not None:
        interval = f" (95 % interval {evaluation['ci_low']:,.2f} to {evaluation['ci_high']:,.2f})"
    cut = f", of which {evaluation['cut']:,} cut at evaluation.max_episode_steps" if evaluation["cut"] else ""
    episodes = f"{evaluation['episodes']:,} held-out episode{'s' if evaluation['episodes'] > 1 else ''}"
    return f"mean return {evaluation['return_mean']:,.2f}{interval} over {episodes}{cut}"


def monitoring_lines(result: Mapping[str, Any]) -> list[str]:
    """Returns an evaluation's result, as JSON, for people."""
    lines = [evaluation_line(result["evaluation"])]
    if result["model"] is None:
        return lines
    who = "the champion" if result["is_champion"] else "not the champion"
    verdict = "DROPPED" if result["dropped"] else "no drop"
    return [
        *lines,
        f"{verdict}: registered model {result['model']}, version {result['version']}, {who}",
        *(f"  {reason}" for reason in result["reasons"]),
        f"evaluation {result['number']} of MLflow run {result['run_id']}: {result['ui_command']}",
    ]


def _end(summary: Mapping[str, Any]) -> str:
    how = "done" if summary["stop_reason"] == "completed" else f"stopped by a {summary['stop_reason']}"
    speed = f", {summary['steps_per_second']:,.0f} steps/s" if summary["steps_per_second"] else ""
    return f"{how} at {summary['num_timesteps']:,} steps{speed}"
