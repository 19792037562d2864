"""Draws the figure of the scaling benchmark from `scaling.json`, for `report.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "scaling.png"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
"""Colors of the palette of Okabe and Ito, which most color-blind people can distinguish."""


def draw(parts: Mapping[str, Any], path: Path) -> None:
    """Draws a panel for each measured quantity; a panel without measurements stays empty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.4), layout="constrained")
    panels = figure.subplots(1, 4)
    for panel, title, across in zip(panels, TITLES, ACROSS, strict=True):
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel(across, fontsize="small")
        panel.tick_params(labelsize="small")
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
    if "envs" in parts:
        _draw_envs(panels[0], parts["envs"]["points"])
    if "length" in parts:
        _draw_length(panels[1], panels[2], parts["length"]["points"])
    if "saving" in parts:
        _draw_saving(panels[3], parts["saving"]["points"])
    figure.savefig(path, dpi=110)


TITLES = ("environment steps per second", "cost of a step", "points of the longest metric", "checkpoint, seconds")
ACROSS = ("environments", "steps of the run", "steps of the run", "replay buffer, MB")


def _draw_envs(panel: Axes, points: list[dict[str, Any]]) -> None:
    for kind, color in (("sync", BLUE), ("native", ORANGE)):
        of_kind = [point for point in points if point["vectorization"] == kind]
        counts = [point["num_envs"] for point in of_kind]
        panel.loglog(counts, [point["steps_per_second"] for point in of_kind], "o-", color=color, label=kind)
        alone = [point["collection_steps_per_second"] for point in of_kind]
        panel.loglog(counts, alone, "o--", color=color, alpha=0.5, label=f"{kind}, collection alone")
    panel.legend(fontsize="small", frameon=False)


def _draw_length(costs: Axes, counts: Axes, points: list[dict[str, Any]]) -> None:
    steps = [point["steps"] for point in points]
    costs.semilogx(steps, [point["microseconds_per_step"] for point in points], "o-", color=BLUE, label="µs per step")
    memory = [point["peak_memory_bytes"] / 1e8 for point in points]
    costs.semilogx(steps, memory, "o-", color=GREEN, label="peak memory, 100 MB")
    for place, color in (("file", BLUE), ("mlflow", ORANGE)):
        label = "in the run's file" if place == "file" else "in MLflow"
        counts.loglog(steps, [point[f"most_points_in_{place}"] for point in points], "o-", color=color, label=label)
    costs.set_ylim(bottom=0)
    costs.legend(fontsize="small", frameon=False)
    counts.legend(fontsize="small", frameon=False)


def _draw_saving(panel: Axes, points: list[dict[str, Any]]) -> None:
    sizes = [point["buffer_bytes"] / 1e6 for point in points]
    for key, label, color in (("all_new", "all new", BLUE), ("few_new", "1,000 new", ORANGE)):
        whole = [point[key]["whole_seconds"] for point in points]
        panel.plot(sizes, whole, "o-", color=color, label=f"{label}: complete")
        still = [point[key]["stand_still_seconds"] for point in points]
        panel.plot(sizes, still, "o--", color=color, alpha=0.6, label=f"{label}: training blocked")
    panel.set_ylim(bottom=0)
    panel.legend(fontsize="small", frameon=False)
