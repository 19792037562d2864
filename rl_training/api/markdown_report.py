"""The Markdown reports of the flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def format_training_report(summary: Mapping[str, Any], version_url: str | None = None) -> str:
    """Returns the report of a flow that trains.

    Args:
        summary: The summary; see `rl_training.flows.pipeline.summarize`.
        version_url: The address of the registered version's page, if it has one.
    """
    from rl_training.api.summary import ENDINGS, explain_lost_best, format_evaluation
    from rl_training.runs.health_warnings import read_health_warnings
    from rl_training.runtime.inexact_resumes import explain_inexact

    evaluation, lost, ended = summary["evaluation"], summary.get("lost_best"), summary["stop_reason"]
    if ended != "completed":
        ended = ENDINGS.get(ended, ended)
    run, ui = f"`{summary['run_id']}`", summary["ui_command"]
    is_page = ui is not None and ui.startswith("http")
    promotion = summary["promotion"]
    version = None if promotion is None else f"{promotion['model']}, version {promotion['version']}"
    rows = [
        ("environment steps", f"{summary['num_timesteps']:,}"),
        ("training ended", ended),
        ("steps a second", f"{summary['steps_per_second']:,.0f}"),
        ("MLflow run", _link(run, ui if is_page else None)),
        *([] if is_page else [("opens the UI", f"`{ui}`")]),
        *([] if version is None else [("registered version", _link(version, version_url))]),
        ("run directory", f"`{summary['run_dir']}`"),
        ("best checkpoint", f"`{summary['best_checkpoint']}`"),
        ("its policy's sha256", f"`{summary['best_policy_sha256']}`"),
        ("last checkpoint", f"`{summary['checkpoint']}`"),
        ("its policy's sha256", f"`{summary['policy_sha256']}`"),
        *(("validation warned", warning) for warning in summary["warnings"]),
        *(("training warned", str(warning)) for warning in read_health_warnings(summary)),
        *(("not exact", explain_inexact(entry)) for entry in summary["inexact"]),
        *([("note", explain_lost_best(lost))] if lost is not None else []),
    ]
    return _join_parts(
        f"{summary['algo']} on {summary['env_id']}",
        ["The policy was not evaluated." if evaluation is None else format_evaluation(evaluation)],
        _format_promotion(summary["promotion"]),
        _format_table(rows),
    )


def format_promotion_report(promotion: Mapping[str, Any], run_url: str | None, version_url: str | None) -> str:
    """Returns the report of a promotion decision.

    Args:
        promotion: The result of `PromotionResult.to_dict`.
        run_url: The address of the candidate's run in MLflow, if it has one.
        version_url: The address of the registered version, if it has one.
    """
    from rl_training.promotion.decision import format_promotion_line

    candidate, champion = promotion["candidate"], promotion["champion"]
    players = [candidate] if champion is None else [candidate, champion]
    opponent = promotion["opponent_version"]
    role = "champion" if opponent == promotion["previous_version"] else "earlier champion"
    names = [f"candidate, version {promotion['version']}", f"{role}, version {opponent}"]
    rows = [
        ("mean return", *(f"{player['return_mean']:,.2f}" for player in players)),
        ("95 % interval", *(f"{player['ci_low']:,.2f} to {player['ci_high']:,.2f}" for player in players)),
        ("standard deviation", *(f"{player['return_std']:,.2f}" for player in players)),
        ("mean length", *(f"{player['length_mean']:,.1f}" for player in players)),
        *_compare_other_numbers(players),
        ("episodes", *(f"{player['episodes']:,}" for player in players)),
        *([("cut episodes", *(f"{player['cut']:,}" for player in players))] if any(p["cut"] for p in players) else []),
    ]
    sources = [
        ("registered version", _link(f"{promotion['model']}, version {promotion['version']}", version_url)),
        ("MLflow run", _link(f"`{promotion['run_id']}`", run_url)),
        ("record", f"`{promotion['record']}`"),
    ]
    return _join_parts(
        f"{promotion['verdict']}: {promotion['model']}, version {promotion['version']}",
        [format_promotion_line(promotion)],
        _format_list(promotion["reasons"]),
        _format_table(rows, ("", *names[: len(players)])),
        _format_table(sources),
    )


def format_monitoring_report(result: Mapping[str, Any]) -> str:
    """Returns the report of an evaluation, from the result of `MonitoringResult.to_dict`."""
    from rl_training.api.summary import format_evaluation

    line, ui = format_evaluation(result["evaluation"]), result["ui_command"]
    rows = [
        ("environment", f"`{result['env_id']}`"),
        ("trained for", f"{result['num_timesteps']:,} steps"),
        ("policy sha256", f"`{result['policy_sha256']}`"),
    ]
    if result["model"] is None:
        return _join_parts(f"Evaluation on {result['env_id']}", [line], _format_table(rows))
    page = ui if ui.startswith("http") else None
    rows += [
        ("champion", "yes" if result["is_champion"] else "no"),
        ("evaluation", f"{result['number']}"),
        ("monitoring run", _link(f"`{result['run_id']}`", page)),
        ("record", f"`{result['record']}`"),
    ]
    verdict = "DROPPED" if result["dropped"] else "no drop"
    return _join_parts(
        f"{result['model']}, version {result['version']}: {verdict}",
        [line],
        _format_list(result["reasons"]),
        _format_table(rows),
    )


def format_rollback_report(rollback: Mapping[str, Any]) -> str:
    """Returns the report of a rollback, from the result of `RollbackResult.to_dict`."""
    return _join_parts(
        f"{rollback['model']}: rolled back to version {rollback['version']}",
        [f"Version {rollback['version']} is champion again, in place of version {rollback['previous_version']}."],
        _format_list([rollback["reason"]]),
    )


def _compare_other_numbers(players: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Returns the rows of those numbers besides the return that a player's evaluation has."""
    titles = {"success_rate": "success rate", "raw_return_mean": "mean raw return"}
    titles |= {name: f"mean {name}" for player in players for name in sorted(player) if name.startswith("info/")}
    return [
        (title, *("" if player.get(name) is None else f"{player[name]:,.4g}" for player in players))
        for name, title in titles.items()
        if any(player.get(name) is not None for player in players)
    ]


def _format_promotion(promotion: Mapping[str, Any] | None) -> Sequence[str]:
    if promotion is None:
        return ["Promotion is off (`promotion.enabled`)."]
    from rl_training.promotion.decision import format_promotion_line

    return [format_promotion_line(promotion), "", *_format_list(promotion["reasons"])]


def _join_parts(title: str, *parts: Iterable[str]) -> str:
    return "\n".join([f"# {title}", "", *(line for part in parts for line in [*part, ""])])


def _format_list(reasons: Iterable[str]) -> list[str]:
    return [f"- {reason}" for reason in reasons]


def _format_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ("", "")) -> list[str]:
    return [_format_row(head), _format_row(["---"] * len(head)), *map(_format_row, rows)]


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _link(text: str, page: str | None) -> str:
    """Returns a link, without the text's backquotes, which Prefect does not render in a link; or plain text."""
    return text if page is None else f"[{text.strip('`')}]({page})"
