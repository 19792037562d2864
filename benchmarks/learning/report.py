"""Writes the tables and the figure of the learning results from their JSON files.

    python -m benchmarks.learning.report

draws `benchmarks/results/learning.png` and updates the tables of docs/learning.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scipy import stats

from benchmarks.harness import RESULTS, ROOT, replace_block, update_file
from benchmarks.learning.peer_tasks import PEER_TASKS, PeerTask
from benchmarks.learning.tables import format_peers, format_results, format_seeds
from benchmarks.learning.tasks import TASKS, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

PAGE = ROOT / "docs" / "learning.md"
PICTURE = "learning.png"
COLUMNS = 4
COLORS = {"DQN": "#0072b2", "SAC": "#d55e00", "TD3": "#cc79a7", "TQC": "#e69f00", "PPO": "#009e73"}
"""Colors of the palette of Okabe and Ito, which most color-blind people can distinguish."""
BAR, PUBLISHED = "#222222", "#888888"


@dataclass(frozen=True)
class Curves:
    """The curves of one panel: the greedy periodic evaluations of each seed, and their interquartile mean."""

    seeds: tuple[list[tuple[float, float]], ...]
    """The points (step, mean return) of each seed."""
    middle: list[tuple[float, float]]
    """The points (step, interquartile mean over the seeds) at the steps at which all seeds were evaluated."""


def write_report(results: Path) -> None:
    """Draws the figure of the results in a folder; for the repository's own results, also updates the page."""
    measured, peers = read_results(results), read_peer_results(results)
    if not measured and not peers:
        print(f"{results} has no results for the tasks of the tables; nothing to report")
        return
    for text in make_blocks(measured, peers).values():
        print(text, end="\n\n")
    if measured:
        draw(measured, results / PICTURE)
        print(f"drawn: {results / PICTURE}")
    if results == RESULTS:
        update_file(PAGE, lambda page: update_page(page, measured, peers))


def read_results(results: Path) -> dict[Task, dict[str, Any]]:
    """Returns the results of each config that was measured, in the order of the table."""
    return _read({task: results / f"learning-{task.name}.json" for task in TASKS})


def read_peer_results(results: Path) -> dict[PeerTask, dict[str, Any]]:
    """Returns the results of each task that was measured beside Stable-Baselines3, in the order of the tables."""
    return _read({task: results / f"{task.name}.json" for task in PEER_TASKS})


def _read(paths: Mapping[T, Path]) -> dict[T, dict[str, Any]]:
    return {task: json.loads(path.read_text(encoding="utf-8")) for task, path in paths.items() if path.exists()}


def update_page(page: str, measured: dict[Task, dict[str, Any]], peers: dict[PeerTask, dict[str, Any]]) -> str:
    """Returns the page with its tables updated."""
    for name, text in make_blocks(measured, peers).items():
        page = replace_block(page, name, text)
    return page


def make_blocks(measured: dict[Task, dict[str, Any]], peers: dict[PeerTask, dict[str, Any]]) -> dict[str, str]:
    """Returns the text of each block of the page."""
    missing = [task.title for task in TASKS if task not in measured]
    rest = [f"Not measured yet: {', '.join(missing)}."] if missing else []
    return {
        "learning results": "\n\n".join([format_results(measured), *rest]),
        "seeds": format_seeds([task for task in TASKS if task.group == "seeds"], measured),
        "parity": format_peers([task for task in PEER_TASKS if task.group != "defaults"], peers),
        "defaults": format_peers([task for task in PEER_TASKS if task.group == "defaults"], peers),
    }


def make_curves(result: dict[str, Any]) -> Curves:
    """Returns the curves of one result."""
    seeds = tuple([(step, value) for step, value in run["evaluation_returns"]] for run in result["seeds"])
    by_step = [dict(seed) for seed in seeds]
    common = sorted(set.intersection(*(set(points) for points in by_step)))
    middle = [(step, float(stats.trim_mean([points[step] for points in by_step], 0.25))) for step in common]
    return Curves(seeds, middle)


def draw(measured: dict[Task, dict[str, Any]], path: Path) -> None:
    """Draws a figure with a panel for each task."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    columns = min(COLUMNS, len(measured))
    rows = -(-len(measured) // columns)
    layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.03)
    height = 2.7 * rows + (0.7 if columns > 2 else 1.7)  # the legend is above, in one row if there is room
    figure = Figure(figsize=(3.6 * columns, height), layout=layout)
    panels = figure.subplots(rows, columns, squeeze=False)
    for i, panel in enumerate(panels.flat):
        panel.set_visible(i < len(measured))
    for panel, (task, result) in zip(panels.flat, measured.items(), strict=False):
        _draw_panel(panel, task, result)
    figure.supxlabel("environment steps (thousands)", fontsize="medium")
    figure.supylabel("return of the greedy policy", fontsize="medium")
    key = [
        Line2D([], [], color="#555555", linewidth=1, alpha=0.5, label="one seed, periodic evaluation"),
        Line2D([], [], color="#555555", linewidth=2.2, label="interquartile mean of the seeds"),
        Line2D([], [], color="black", marker="D", markersize=5, label="final evaluation, 95% interval"),
        Line2D([], [], color=BAR, linewidth=1.1, linestyle="--", label="target"),
        Line2D([], [], color=PUBLISHED, linewidth=1.6, linestyle=":", label="published (RL Baselines3 Zoo)"),
    ]
    figure.legend(handles=key, loc="outside upper center", ncols=len(key) if columns > 2 else 1, frameon=False)
    figure.savefig(path, dpi=110)


def _draw_panel(axes: Axes, task: Task, result: dict[str, Any]) -> None:
    color = COLORS[task.algo]
    shown = make_curves(result)
    for seed in shown.seeds:
        axes.plot(*_to_thousands(seed), color=color, linewidth=1, alpha=0.45)
    axes.plot(*_to_thousands(shown.middle), color=color, linewidth=2.2)
    axes.axhline(task.bar, color=BAR, linewidth=1.1, linestyle="--")
    axes.axhline(task.published.mean, color=PUBLISHED, linewidth=1.6, linestyle=":")
    summary = result["summary"]
    score, low, high = summary["iqm"], summary.get("iqm_low", summary["iqm"]), summary.get("iqm_high", summary["iqm"])
    end = max(run["num_timesteps"] for run in result["seeds"]) / 1000
    axes.errorbar(
        [end], [score], [[score - low], [high - score]], color="black", marker="D", markersize=5, capsize=2.5, zorder=3
    )
    axes.set_title(task.title, fontsize="medium", color=color, weight="bold")
    axes.set_xlim(left=0)
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _to_thousands(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [step / 1000 for step, _ in points], [value for _, value in points]


def main() -> None:
    parser = argparse.ArgumentParser(description="Update the table and the figure of the learning benchmark.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    write_report(parser.parse_args().results.resolve())


if __name__ == "__main__":
    main()
