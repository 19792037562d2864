"""The Markdown tables of docs/learning.md, made from the JSON files of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import format_row
from benchmarks.learning.peer_tasks import PeerTask
from benchmarks.learning.tasks import ZOO, Task
from rl_training.runs.health_warnings import KINDS

MARGIN = 0.1
"""The lowest seed may miss the target by this part of the distance from a random policy's score to the target."""
BELOW = 0.1
"""The share of seeds that may be below the target."""

Measured = Mapping[Task, dict[str, Any]]
MeasuredPeers = Mapping[PeerTask, dict[str, Any]]


def format_results(measured: Measured) -> str:
    """Returns the table of the measured and the published results."""
    return "\n".join(_format_results(measured))


def format_peers(tasks: Sequence[PeerTask], measured: MeasuredPeers) -> str:
    """Returns the table of some tasks beside Stable-Baselines3, and names the tasks that are not measured."""
    lines = list(_format_peers({task: measured[task] for task in tasks if task in measured}))
    return _add_missing(lines, [f"{task.title} ({task.steps:,} steps)" for task in tasks if task not in measured])


def format_seeds(tasks: Sequence[Task], measured: Measured) -> str:
    """Returns the table of the lowest seeds, and names the tasks that are not measured with all their seeds."""
    chosen = {task: measured[task] for task in tasks if task in measured and has_all_seeds(task, measured[task])}
    return _add_missing(list(_format_seeds(chosen)), [task.title for task in tasks if task not in chosen])


def has_all_seeds(task: Task, result: Mapping[str, Any]) -> bool:
    """Returns whether a result has as many seeds as the task, and the policies that a flow would promote."""
    summary = result["summary"]
    return "promoted" in summary and summary["seeds"] >= task.seeds


def judge_seeds(bar: float, random: float, summary: Mapping[str, float]) -> tuple[float, bool]:
    """Returns the score that the lowest seed must reach, and whether the seeds of a row are good enough.

    They are if no more than one in ten is below the target and none is far below.

    Args:
        bar: The target.
        random: The score of a random policy.
        summary: `seeds`, `at_bar` and `lowest` of the row.
    """
    floor = bar - MARGIN * (bar - random)
    few = summary["seeds"] - summary["at_bar"] <= BELOW * summary["seeds"]
    return floor, bool(few and summary["lowest"] >= floor)


def format_warnings(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns how many of a row's seeds raised which warning about training, and how many of them withdrew it.

    Args:
        runs: The results of our seeds; those of earlier versions have no `health`.
    """
    recorded = [run["health"] for run in runs if "health" in run]
    if not recorded:
        return "not recorded"
    parts = []
    for kind in KINDS:
        ends = [[warning["withdrawn"] for warning in health if warning["kind"] == kind] for health in recorded]
        if raised := [end for end in ends if end]:
            withdrawn = sum(end[-1] is not None for end in raised)
            rest = f" ({withdrawn} withdrawn)" if withdrawn else ""
            parts.append(f"`{kind}` {len(raised)} of {len(recorded)}{rest}")
    missing = len(runs) - len(recorded)
    return ", ".join([*(parts or ["silent"]), *([f"{missing} not recorded"] if missing else [])])


def _add_missing(lines: list[str], missing: Sequence[str]) -> str:
    """Returns a table, without it if it has no rows, and a sentence that names what is missing."""
    parts = ["\n".join(lines)] if len(lines) > 2 else []
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _format_results(measured: Measured) -> Iterator[str]:
    yield (
        "| task | steps | IQM [95% interval] | lowest seed | seeds | target | reached | published | published steps "
        "| warnings |"
    )
    yield "|---|---:|---:|---:|---:|---:|---|---:|---:|---|"
    for task, result in measured.items():
        summary, published = result["summary"], task.published
        score = f"{summary['iqm']:.1f}"
        if "iqm_low" in summary:
            score += f" [{summary['iqm_low']:.1f}, {summary['iqm_high']:.1f}]"
        source = "" if published.source == ZOO else f", {published.source}"
        cells = [
            task.title,
            f"{max(run['num_timesteps'] for run in result['seeds']):,}",
            score,
            f"{summary['lowest']:.1f}",
            str(summary["seeds"]),
            f"{task.bar:g}",
            "yes" if summary["iqm"] >= task.bar else "**no**",
            f"{published.mean:.1f} ± {published.std:.1f}{source}",
            f"{published.steps:,}",
            format_warnings(result["seeds"]),
        ]
        yield format_row(cells)


def _format_peers(measured: MeasuredPeers) -> Iterator[str]:
    yield (
        "| task | steps | seeds | rl_training (lowest to highest) | Stable-Baselines3 (lowest to highest) "
        "| random | difference [95% interval] | no worse | in training, ours and theirs | our warnings |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---|---:|---|"
    for task, result in measured.items():
        summary = result["summary"]
        difference = summary["difference"]
        shown = f"{difference['value']:.1f}"
        if difference["low"] is not None:
            shown += f" [{difference['low']:.1f}, {difference['high']:.1f}]"
        cells = [
            task.title,
            f"{task.steps:,}",
            str(len(result["ours"])),
            _format_scores(result["ours"]),
            _format_scores(result["theirs"]),
            f"{summary['random']:.1f}",
            shown,
            "yes" if summary["no_worse"] else "**no**",
            _format_training_returns(result),
            format_warnings(result["ours"]),
        ]
        yield format_row(cells)


def _format_scores(runs: Sequence[Mapping[str, Any]]) -> str:
    scores = [run["return_mean"] for run in runs]
    return f"{sum(scores) / len(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def _format_training_returns(result: Mapping[str, Any]) -> str:
    """Returns the mean return of the last 100 episodes of training, over the seeds of each library."""
    theirs = [run["training_return"] for run in result["theirs"] if "training_return" in run]
    if not theirs:  # a row that was measured before it was recorded
        return "not recorded"
    ours = [run["training_returns"][-1][1] for run in result["ours"]]
    return f"{sum(ours) / len(ours):.1f} and {sum(theirs) / len(theirs):.1f}"


def _format_seeds(measured: Measured) -> Iterator[str]:
    yield (
        "| task | seeds | target | least for the lowest | final policy: lowest | at the target | reached "
        "| promoted policy: IQM | lowest | at the target |"
    )
    yield "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|"
    for task, result in measured.items():
        summary = result["summary"]
        promoted = summary["promoted"]
        floor, reached = judge_seeds(task.bar, summary["random"], summary)
        cells = [
            task.title,
            str(summary["seeds"]),
            f"{task.bar:g}",
            f"{floor:.1f}",
            f"{summary['lowest']:.1f}",
            f"{summary['at_bar']} of {summary['seeds']}",
            "yes" if reached else "**no**",
            f"{promoted['iqm']:.1f}",
            f"{promoted['lowest']:.1f}",
            f"{promoted['at_bar']} of {promoted['seeds']}",
        ]
        yield format_row(cells)
