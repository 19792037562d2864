"""What a flow tells people: reports in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def report_text(summary: Mapping[str, Any]) -> str:
    """Returns the report of a training flow's summary."""
    from rl_training.api.summary import evaluation_line
    from rl_training.runtime.inexact_resumes import explain_resume

    evaluation = summary["evaluation"]
    run, ui = f"`{summary['run_id']}`", summary["ui_command"]
    is_page = ui is not None and ui.startswith("http")
    rows = [
        ("environment steps", f"{summary['num_timesteps']:,}"),
        ("training ended", summary["stop_reason"]),
        ("steps a second", f"{summary['steps_per_second']:,.0f}"),
        ("MLflow run", _linked(run, ui if is_page else None)),
        *([] if is_page else [("opens the UI", f"`{ui}`")]),
        ("run directory", f"`{summary['run_dir']}`"),
        ("best checkpoint", f"`{summary['best_checkpoint']}`"),
        ("policy sha256", f"`{summary['policy_sha256']}`"),
        *(("not exact", f"resumed {explain_resume(resume)}") for resume in summary["inexact"]),
    ]
    return _page(
        f"{summary['algo']} on {summary['env_id']}",
        ["The policy was not judged." if evaluation is None else evaluation_line(evaluation)],
        _promotion_paragraph(summary["promotion"]),
        _table(rows),
    )


def promotion_text(promotion: Mapping[str, Any], get_run_url: str | None, get_version_url: str | None) -> str:
    """Returns the report of a decision.

    Args:
        promotion: Of `PromotionResult.to_dict`.
        get_run_url: Address of the candidate's run in MLflow, where it has one.
        get_version_url: Address of its registered version.
    """
    from rl_training.promotion.decision import format_promotion_line

    candidate, champion = promotion["candidate"], promotion["champion"]
    columns = [candidate] if champion is None else [candidate, champion]
    names = [f"candidate, version {promotion['version']}", f"champion, version {promotion['previous_version']}"]
    rows = [
        ("mean return", *(f"{one['return_mean']:,.2f}" for one in columns)),
        ("95 % interval", *(f"{one['ci_low']:,.2f} to {one['ci_high']:,.2f}" for one in columns)),
        ("standard deviation", *(f"{one['return_std']:,.2f}" for one in columns)),
        ("mean length", *(f"{one['length_mean']:,.1f}" for one in columns)),
        ("episodes", *(f"{one['episodes']:,}" for one in columns)),
    ]
    sources = [
        ("registered version", _linked(f"{promotion['model']}, version {promotion['version']}", get_version_url)),
        ("MLflow run", _linked(f"`{promotion['run_id']}`", get_run_url)),
        ("record", f"`{promotion['record']}`"),
    ]
    return _page(
        f"{promotion['verdict']}: {promotion['model']}, version {promotion['version']}",
        [format_promotion_line(promotion)],
        _listed(promotion["reasons"]),
        _table(rows, ("", *names[: len(columns)])),
        _table(sources),
    )


def monitoring_text(result: Mapping[str, Any]) -> str:
    """Returns the report of an evaluation, of `MonitoringResult.to_dict`."""
    from rl_training.api.summary import evaluation_line

    line, ui = evaluation_line(result["evaluation"]), result["ui_command"]
    rows = [
        ("environment", f"`{result['env_id']}`"),
        ("trained for", f"{result['num_timesteps']:,} steps"),
        ("policy sha256", f"`{result['policy_sha256']}`"),
    ]
    if result["model"] is None:
        return _page(f"Evaluation on {result['env_id']}", [line], _table(rows))
    page = ui if ui.startswith("http") else None
    rows += [
        ("champion", "yes" if result["is_champion"] else "no"),
        ("evaluation", f"{result['number']}"),
        ("monitoring run", _linked(f"`{result['run_id']}`", page)),
        ("record", f"`{result['record']}`"),
    ]
    verdict = "DROPPED" if result["dropped"] else "no drop"
    return _page(
        f"{result['model']}, version {result['version']}: {verdict}", [line], _listed(result["reasons"]), _table(rows)
    )


def rollback_text(rollback: Mapping[str, Any]) -> str:
    """Returns the report of a rollback, of `RollbackResult.to_dict`."""
    return _page(
        f"{rollback['model']}: rolled back to version {rollback['version']}",
        [f"Version {rollback['version']} is champion again, in place of version {rollback['previous_version']}."],
        _listed([rollback["reason"]]),
    )


def _promotion_paragraph(promotion: Mapping[str, Any] | None) -> Sequence[str]:
    if promotion is None:
        return ["Promotion is off (`promotion.enabled`)."]
    from rl_training.promotion.decision import format_promotion_line

    return [format_promotion_line(promotion), "", *_listed(promotion["reasons"])]


def _page(title: str, *parts: Iterable[str]) -> str:
    return "\n".join([f"# {title}", "", *(line for part in parts for line in [*part, ""])])


def _listed(reasons: Iterable[str]) -> list[str]:
    return [f"- {reason}" for reason in reasons]


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = ("", "")) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _linked(text: str, page: str | None) -> str:
    """Returns text that leads to a page; without backquotes, which Prefect shows as such in a link."""
    return text if page is None else f"[{text.strip('`')}]({page})"
