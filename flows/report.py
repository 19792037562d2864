"""What a flow tells people: a run's report in Markdown, and its few lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def report_text(summary: Mapping[str, Any]) -> str:
    """Returns the Markdown report of a flow's summary."""
    rows = [
        ("environment steps", f"{summary['num_timesteps']:,}"),
        ("training ended", summary["stop_reason"]),
        ("steps a second", f"{summary['steps_per_second']:,.0f}"),
        ("MLflow run", f"`{summary['run_id']}`"),
        ("opens the UI", f"`{summary['ui_command']}`"),
        ("run directory", f"`{summary['run_dir']}`"),
        ("best checkpoint", f"`{summary['best_checkpoint']}`"),
        ("policy sha256", f"`{summary['policy_sha256']}`"),
    ]
    return "\n".join(
        [
            f"# {summary['algo']} on {summary['env_id']}",
            "",
            evaluation_sentence(summary["evaluation"]),
            "",
            *_promotion_paragraph(summary["promotion"]),
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
        ]
    )


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Returns the few lines about a flow's summary that a terminal shows."""
    steps = f"{summary['num_timesteps']:,} steps"
    if summary["stop_reason"] == "signal":
        lines = [f"stopped by a signal at {steps}", f"go on with: rl-training flow resume {summary['run_dir']}"]
    else:
        lines = [f"trained {steps} at {summary['steps_per_second']:,.0f} steps/s"]
    if summary["evaluation"] is not None:
        lines.append(evaluation_sentence(summary["evaluation"]))
    if summary["promotion"] is not None:
        lines += [promotion_sentence(summary["promotion"]), *(f"  {r}" for r in summary["promotion"]["reasons"])]
    lines += [
        f"MLflow run {summary['run_id']}",
        f"run directory {summary['run_dir']}",
        f"best checkpoint {summary['best_checkpoint']}",
        f"open the UI: {summary['ui_command']}",
    ]
    return [*lines, *filter(None, [summary["unsent"]])]


def evaluation_sentence(evaluation: Mapping[str, Any] | None) -> str:
    """Returns the sentence that says how good the policy is."""
    if evaluation is None:
        return "The policy was not judged."
    interval = ""
    if evaluation["ci_low"] is not None:
        interval = f" (95 % interval {evaluation['ci_low']:.2f} to {evaluation['ci_high']:.2f})"
    cut = f"; {evaluation['cut']} of them were cut at evaluation.max_episode_steps" if evaluation["cut"] else ""
    return f"mean return {evaluation['return_mean']:.2f}{interval} over {evaluation['episodes']} held-out episodes{cut}"


def promotion_sentence(promotion: Mapping[str, Any]) -> str:
    """Returns the sentence that says what the gate decided."""
    alias = f", now {promotion['alias']}" if promotion["alias"] else ""
    return f"{promotion['verdict']}: registered model {promotion['model']}, version {promotion['version']}{alias}"


def _promotion_paragraph(promotion: Mapping[str, Any] | None) -> Sequence[str]:
    if promotion is None:
        return ["Promotion is off (`promotion.enabled`).", ""]
    return [promotion_sentence(promotion), "", *(f"- {reason}" for reason in promotion["reasons"]), ""]
