"""What a flow tells people: a run's report in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def report_text(summary: Mapping[str, Any]) -> str:
    """Returns the Markdown report of a flow's summary."""
    from rl_training.api.summary import evaluation_line
    from rl_training.runtime.inexact import reasons

    evaluation = summary["evaluation"]
    run, ui = f"`{summary['run_id']}`", summary["ui_command"]
    is_page = ui is not None and ui.startswith("http")
    rows = [
        ("environment steps", f"{summary['num_timesteps']:,}"),
        ("training ended", summary["stop_reason"]),
        ("steps a second", f"{summary['steps_per_second']:,.0f}"),
        ("MLflow run", f"[{run}]({ui})" if is_page else run),
        *([] if is_page else [("opens the UI", f"`{ui}`")]),
        ("run directory", f"`{summary['run_dir']}`"),
        ("best checkpoint", f"`{summary['best_checkpoint']}`"),
        ("policy sha256", f"`{summary['policy_sha256']}`"),
        *(("not exact", f"resumed {reasons(resume)}") for resume in summary["inexact"]),
    ]
    return "\n".join(
        [
            f"# {summary['algo']} on {summary['env_id']}",
            "",
            "The policy was not judged." if evaluation is None else evaluation_line(evaluation),
            "",
            *_promotion_paragraph(summary["promotion"]),
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
        ]
    )


def _promotion_paragraph(promotion: Mapping[str, Any] | None) -> Sequence[str]:
    if promotion is None:
        return ["Promotion is off (`promotion.enabled`).", ""]
    from rl_training.api.summary import promotion_line

    return [promotion_line(promotion), "", *(f"- {reason}" for reason in promotion["reasons"]), ""]
