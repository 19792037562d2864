"""Writes the tables and the figure of the speed benchmarks from their JSON files.

    python -m benchmarks.speed.report

updates the tables of docs/benchmarks.md and draws `benchmarks/results/scaling.png`. Tables without results are left as
they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT, format_row, replace_block, update_file
from benchmarks.speed.number_formats import format_number, format_spread
from benchmarks.speed.scaling_plot import PICTURE, draw
from benchmarks.speed.speed_tables import (
    Parts,
    format_compilation_table,
    format_contestants_table,
    format_floors_table,
    format_processors_table,
    format_speed_table,
    format_threads_table,
)
from benchmarks.speed.tasks import LABELS, OURS, SOLVED

PAGE = ROOT / "docs" / "benchmarks.md"


def format_solved_table(parts: Parts) -> Iterator[str]:
    """Yields the table of the times until solved."""
    yield "| task | contestant | seeds solved | seconds, median (lowest to highest) | vs. rl_training | step, median |"
    yield "|---|---|---:|---:|---:|---:|"
    for task in (task for task in SOLVED if task.name in parts):
        summaries = {name: summary for name, summary in parts[task.name]["summary"].items() if summary["seeds"]}
        ours = summaries.get(OURS, {}).get("seconds", [None])[0]
        for name, summary in summaries.items():
            seconds, steps = summary["seconds"], summary["steps"]
            cells = [
                task.title,
                LABELS[name],
                f"{summary['solved']} of {summary['seeds']}",
                format_spread(seconds),
                "" if None in (ours, seconds[0]) else f"{seconds[0] / ours:.1f}",
                format_number(steps[0]),
            ]
            yield format_row(cells)


def format_scaling_tables(parts: Parts) -> Iterator[str]:
    """Yields the figure, and a table of each measured part."""
    yield f"![How costs grow](../benchmarks/results/{PICTURE})"
    yield ""
    if "envs" in parts:
        yield "| environments | vectorization | minibatch | steps/s | collection alone, steps/s |"
        yield "|---:|---|---:|---:|---:|"
        for point in parts["envs"]["points"]:
            keys = ("num_envs", "batch_size", "steps_per_second", "collection_steps_per_second")
            envs, *others = (format_number(point[key]) for key in keys)
            yield format_row([envs, point["vectorization"], *others])
        yield ""
    if "length" in parts:
        yield "| steps | µs per step | peak memory, MB | most points of a metric in the run's file | in MLflow |"
        yield "|---:|---:|---:|---:|---:|"
        for point in parts["length"]["points"]:
            counts = (format_number(point[f"most_points_in_{place}"]) for place in ("file", "mlflow"))
            memory = f"{point['peak_memory_bytes'] / 1e6:,.0f}"
            yield format_row([format_number(point["steps"]), f"{point['microseconds_per_step']:.1f}", memory, *counts])
        yield ""
    if "saving" in parts:
        yield "| buffer, MB | new transitions | training blocked, ms | complete after, s | written, MB |"
        yield "|---:|---:|---:|---:|---:|"
        for point in parts["saving"]["points"]:
            for saved in (point["all_new"], point["few_new"]):
                still, whole = f"{1e3 * saved['stand_still_seconds']:.1f}", f"{saved['whole_seconds']:.2f}"
                buffer, written = (f"{size / 1e6:,.1f}" for size in (point["buffer_bytes"], saved["written_bytes"]))
                yield format_row([buffer, format_number(saved["new_transitions"]), still, whole, written])


TABLES: dict[str, tuple[str, Callable[[Parts], Iterator[str]]]] = {
    "speed": ("speed", format_speed_table),
    "contestants": ("speed", format_contestants_table),
    "speed-zen4": ("speed-zen4", format_speed_table),
    "contestants-zen4": ("speed-zen4", format_contestants_table),
    "processors-zen4": ("speed-zen4", format_processors_table),
    "compilation": ("speed", format_compilation_table),
    "threads": ("speed", format_threads_table),
    "floors": ("speed", format_floors_table),
    "solved": ("solved", format_solved_table),
    "scaling": ("scaling", format_scaling_tables),
    "processors-speed": ("speed", format_processors_table),
    "processors-solved": ("solved", format_processors_table),
    "processors-scaling": ("scaling", format_processors_table),
}
"""The JSON file of each block of the page, and the function that writes its table."""


def read_results(results: Path) -> dict[str, Parts]:
    """Returns the parts of each existing JSON file."""
    paths = {name: results / f"{name}.json" for name in {file for file, _ in TABLES.values()}}
    existing = {name: path for name, path in paths.items() if path.exists()}
    return {name: json.loads(path.read_text(encoding="utf-8"))["parts"] for name, path in existing.items()}


def update_page(page: str, measured: Mapping[str, Parts]) -> str:
    """Returns the page with the block of each measured table updated."""
    for name, (file, table) in TABLES.items():
        if file in measured:
            page = replace_block(page, name, "\n".join(table(measured[file])).strip())
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Update the tables and the figure of the speed benchmarks.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the tables")
    arguments = parser.parse_args()
    measured = read_results(arguments.results)
    update_file(arguments.page, lambda page: update_page(page, measured))
    if "scaling" in measured:
        draw(measured["scaling"], arguments.results / PICTURE)
        print(f"drawn: {arguments.results / PICTURE}")


if __name__ == "__main__":
    main()
