"""Writes the tables and the figure of the speed benchmarks from their JSON files.

    python -m benchmarks.speed.report

updates the tables of docs/benchmarks.md and draws `benchmarks/results/scaling.png`. Tables without results are left as
they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import RESULTS, ROOT, format_row, replace_block, update_file
from benchmarks.speed.scaling_plot import PICTURE, draw
from benchmarks.speed.tasks import LABELS, OURS, PEERS, SOLVED, SPEED, SPLIT, TRACKED

PAGE = ROOT / "docs" / "benchmarks.md"
COLLECTION_TARGET, UPDATE_TARGET, ORCHESTRATION_TARGET = "70 %", "1.6", "at most 5 %"

Parts = Mapping[str, Any]


def format_speed_table(parts: Parts) -> Iterator[str]:
    """Yields the table that compares our faster variant with the targets."""
    yield "| task | rl_training, steps/s | Stable-Baselines3 | ratio | target | fastest peer | ratio | target |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for task in (task for task in SPEED if task.name in parts):
        speeds = find_median_speeds(parts[task.name])
        measured = find_median_speeds(parts.get(task.base or task.name))
        peers = {name: speed for name, speed in measured.items() if name in PEERS}
        way = max((name for name in (OURS, SPLIT) if name in speeds), key=lambda name: speeds[name], default=OURS)
        ours, sb3 = speeds.get(way), peers.get("sb3")
        best = max(peers, key=lambda name: peers[name], default="")
        fastest = peers.get(best)
        cells = [
            task.title,
            format_speed(ours, after=", split" if way == SPLIT else ""),
            format_speed(sb3, after=", with 8 environments" if task.base else ""),
            *format_ratio(ours, sb3, task.of_sb3),
            "" if task.of_best_peer is None else format_speed(fastest, before=f"{LABELS.get(best, '')} "),
            *format_ratio(ours, fastest, task.of_best_peer),
        ]
        yield format_row(cells)


def format_contestants_table(parts: Parts) -> Iterator[str]:
    """Yields the table of all measurements of each contestant."""
    yield (
        "| task | contestant | steps/s, median (lowest to highest) | per CPU second | threads | total, s | start-up, s "
        "| peak memory, MB | CPUs used by others |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for task in (task for task in SPEED if task.name in parts):
        for name, summary in parts[task.name]["summary"].items():
            if summary["rounds"] > 0:
                cells = [
                    task.name,
                    LABELS[name],
                    format_spread(summary["steps_per_second"]),
                    format_number(summary["steps_per_cpu_second"][0]),
                    str(summary["threads"]),
                    *(f"{summary[name][0]:.1f}" for name in ("wall_seconds", "startup_seconds")),
                    f"{summary['peak_memory_bytes'][0] / 1e6:,.0f}",
                    f"{summary['most_other_cpus']:.2f}",
                ]
                yield format_row(cells)


def format_threads_table(parts: Parts) -> Iterator[str]:
    """Yields the table of the speeds with one thread and with two."""
    tried = {name: parts[name].get("tried_threads", {}) for name in (task.name for task in SPEED) if name in parts}
    tried = {name: speeds for name, speeds in tried.items() if any(len(counts) > 1 for counts in speeds.values())}
    yield "| contestant, steps/s with 1 thread and with 2 | " + " | ".join(tried) + " |"
    yield "|---|" + "---:|" * len(tried)
    for who in (OURS, SPLIT, *PEERS):
        pairs = [speeds.get(who, {}) for speeds in tried.values()]
        if any(pairs):
            cells = [
                " and ".join(format_number(pair[count]) for count in "12") if len(pair) > 1 else "" for pair in pairs
            ]
            yield format_row([LABELS[who], *cells])


def format_floors_table(parts: Parts) -> Iterator[str]:
    """Yields the table of the limits of the machine, and of our distance from them."""
    yield "| task | quantity | median (lowest to highest) | target |"
    yield "|---|---|---:|---:|"
    for task in (task for task in SPEED if task.name in parts):
        floors = [floor for floor in parts[task.name]["floors"] if "broke" not in floor]
        for words, key, scale, unit, aim in FLOORS[task.floor] if floors and task.floor is not None else ():
            values = [scale * floor[key] for floor in floors]
            shown = format_spread([f(values) for f in (median, min, max)], unit)
            yield format_row([task.name, words, shown, aim if task.base is None else ""])
        summary = parts[task.name]["summary"].get(TRACKED, {})
        if "orchestration" in summary:
            shares = [100 * share for share in summary["orchestration"]]
            words = "metrics, checkpoints, progress and MLflow, share of the time in `Trainer.train()`"
            yield format_row([task.name, words, format_spread(shares, " %"), ORCHESTRATION_TARGET])


FLOORS: dict[str, list[tuple[str, str, float, str, str]]] = {
    "collection": [
        ("Gymnasium's vector environment alone, random actions, steps/s", "gymnasium", 1, "", ""),
        ("our training environments alone, recorded actions, steps/s", "stack", 1, "", ""),
        ("collection, steps/s", "collection", 1, "", ""),
        ("collection, relative to our environments alone", "collection_share", 100, " %", COLLECTION_TARGET),
        ("share of updates in the time of collection and updates", "update_share", 100, " %", ""),
    ],
    "products": [
        ("Gymnasium's environment alone, random actions, steps/s", "environment", 1, "", ""),
        ("an update's matrix products in their order, numpy, ms", "numpy_ms", 1, "", ""),
        ("the same, torch, ms", "torch_ms", 1, "", ""),
        ("each product repeated by itself, numpy, ms", "numpy_hot_ms", 1, "", ""),
        ("the same, torch, ms", "torch_hot_ms", 1, "", ""),
        ("an update, ms", "update_ms", 1, "", ""),
        ("an update, relative to its matrix products in their order", "update_over_products", 1, "", UPDATE_TARGET),
    ],
}
"""The rows (title, key, factor, unit, target) of each kind of floor."""


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
    "threads": ("speed", format_threads_table),
    "floors": ("speed", format_floors_table),
    "solved": ("solved", format_solved_table),
    "scaling": ("scaling", format_scaling_tables),
}
"""The JSON file of each block of the page, and the function that writes its table."""


def find_median_speeds(part: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the median steps per second of each contestant of a task."""
    summaries = {} if part is None else part["summary"]
    return {name: summary["steps_per_second"][0] for name, summary in summaries.items() if summary["rounds"]}


def format_ratio(ours: float | None, other: float | None, aim: float | None) -> list[str]:
    """Returns the cells of a ratio and its target; a ratio below the target is bold."""
    if ours is None or other is None or aim is None:
        return ["", "" if aim is None else f"{aim:g}"]
    ratio = ours / other
    return [f"{ratio:.2f}" if ratio >= aim else f"**{ratio:.2f}**", f"{aim:g}"]


def format_speed(speed: float | None, *, before: str = "", after: str = "") -> str:
    """Returns a speed with the texts around it, or `not measured`."""
    return "not measured" if speed is None else f"{before}{format_number(speed)}{after}"


def format_spread(values: Sequence[float | None], unit: str = "") -> str:
    """Returns `median (lowest to highest)`."""
    middle, lowest, highest = (format_number(value) for value in values)
    return f"{middle}{unit} ({lowest} to {highest})"


def format_number(value: float | None) -> str:
    """Returns a number with at least three significant digits; None becomes `never`."""
    if value is None:
        return "never"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


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
