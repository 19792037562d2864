"""Writes the tables of `speed.json`: the contestants, and the limits of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, TypeAlias

from benchmarks.harness import format_row
from benchmarks.speed.number_formats import format_number, format_spread
from benchmarks.speed.tasks import COMPILED, IMPORTS, LABELS, OURS, PEERS, SPEED, SPLIT, TRACKED

COLLECTION_TARGET, UPDATE_TARGET, PRODUCTS_TARGET, ORCHESTRATION_TARGET = "75 %", "1.25", "75 %", "at most 3 %"

Parts = Mapping[str, Any]


def format_speed_table(parts: Parts) -> Iterator[str]:
    """Yields the table that compares our faster variant with the targets."""
    yield (
        "| task | rl_training, steps/s | Stable-Baselines3 | ratio | target | fastest peer | ratio | target "
        "| rejax | ratio |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for task in (task for task in SPEED if task.name in parts):
        speeds = find_median_speeds(parts[task.name])
        peers = {name: speed for name, speed in speeds.items() if name in PEERS and name not in COMPILED}
        way = max((name for name in (OURS, SPLIT) if name in speeds), key=lambda name: speeds[name], default=OURS)
        ours, sb3 = speeds.get(way), find_median_speeds(parts.get(task.base or task.name)).get("sb3")
        best = max(peers, key=lambda name: peers[name], default="")
        fastest, compiled = peers.get(best), speeds.get("rejax")
        cells = [
            task.title,
            format_speed(ours, after=", split" if way == SPLIT else ""),
            format_speed(sb3, after=", with 8 environments" if task.base else ""),
            *format_ratio(ours, sb3, task.of_sb3),
            "" if set(task.peers) <= set(COMPILED) else format_speed(fastest, before=f"{LABELS.get(best, '')} "),
            *format_ratio(ours, fastest, task.of_best_peer),
            format_speed(compiled) if "rejax" in task.peers else "",
            format_ratio(ours, compiled, None)[0],
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
        if floors := [floor for floor in parts[task.name].get("imports", []) if "broke" not in floor]:
            seconds, size = (median(floor[key] for floor in floors) for key in ("wall_seconds", "peak_memory_bytes"))
            yield format_row([task.name, LABELS[IMPORTS], "", "", "1", f"{seconds:.1f}", "", f"{size / 1e6:,.0f}", ""])


def format_compilation_table(parts: Parts) -> Iterator[str]:
    """Yields the table of the contestants that compile the complete training before its first step."""
    yield "| task | contestant | steps/s | compilation, s | steps/s with compilation | steps | rl_training, steps/s |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for task in (task for task in SPEED if task.name in parts):
        ours = find_median_speeds(parts[task.name]).get(OURS)
        for name, summary in parts[task.name]["summary"].items():
            if "compile_seconds" in summary:
                keys = ("steps_per_second", "compile_seconds", "with_compilation")
                numbers = (format_number(summary[key][0]) for key in keys)
                steps = format_number(task.find_length(name)[1])
                yield format_row([task.name, LABELS[name], *numbers, steps, format_speed(ours)])


def format_processors_table(parts: Parts) -> Iterator[str]:
    """Yields the table of the processors on which the parts of a file were measured."""
    yield "| measured | processor | cores | vectors | matrix products of numpy | of torch |"
    yield "|---|---|---:|---:|---|---|"
    names: dict[tuple[str, ...], list[str]] = {}
    for name, part in parts.items():
        names.setdefault(describe_machine(part["machine"]), []).append(name)
    for cells, measured in names.items():
        yield format_row([", ".join(measured), *cells])


def describe_machine(machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a machine; files that were written before the processor was described have only its name."""
    numbers = [f"{name} {machine[name]}" for name in ("family", "model", "stepping") if machine.get(name) is not None]
    generation = machine.get("generation")
    named = f"{machine['cpu']}: {generation}" if generation else machine["cpu"]
    bits, products = machine.get("vector_bits"), machine.get("products", {})
    return (
        f"{named} ({', '.join(numbers)})" if numbers else named,
        str(machine["cpus"]),
        f"{bits} bits" if bits else "not recorded",
        products.get("numpy", "not recorded"),
        products.get("torch", "not recorded"),
    )


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
        for words, key, scale, unit, aim in FLOORS[task.algo] if floors else ():
            values = [scale * floor[key] for floor in floors]
            shown = format_spread([f(values) for f in (median, min, max)], unit)
            yield format_row([task.name, words, shown, aim if task.base is None else ""])
        summary = parts[task.name]["summary"].get(TRACKED, {})
        if "orchestration" in summary:
            shares = [100 * share for share in summary["orchestration"]]
            words = "metrics, checkpoints, progress and MLflow, share of the time in `Trainer.train()`"
            yield format_row([task.name, words, format_spread(shares, " %"), ORCHESTRATION_TARGET])


FloorRow: TypeAlias = tuple[str, str, float, str, str]
"""A row of the table of limits: title, key, factor, unit and target."""

_PRODUCTS: list[FloorRow] = [
    ("Gymnasium's environment alone, random actions, steps/s", "environment", 1, "", ""),
    ("an update's matrix products in their order, numpy, ms", "numpy_ms", 1, "", ""),
    ("the same, torch, ms", "torch_ms", 1, "", ""),
    ("each product repeated by itself, numpy, ms", "numpy_hot_ms", 1, "", ""),
    ("the same, torch, ms", "torch_hot_ms", 1, "", ""),
    ("an update, ms", "update_ms", 1, "", ""),
]
_RELATIVE = "an update, relative to its matrix products in their order"
FLOORS: dict[str, list[FloorRow]] = {
    "ppo": [
        ("Gymnasium's vector environment alone, random actions, steps/s", "gymnasium", 1, "", ""),
        ("our training environments alone, recorded actions, steps/s", "stack", 1, "", ""),
        ("collection, steps/s", "collection", 1, "", ""),
        ("collection, relative to our environments alone", "collection_share", 100, " %", COLLECTION_TARGET),
        ("share of updates in the time of collection and updates", "update_share", 100, " %", ""),
    ],
    "sac": [*_PRODUCTS, (_RELATIVE, "update_over_products", 1, "", UPDATE_TARGET)],
    "dqn": [
        *_PRODUCTS,
        (_RELATIVE, "update_over_products", 1, "", ""),
        ("training, relative to its matrix products alone", "products_share", 100, " %", PRODUCTS_TARGET),
    ],
}
"""The rows of each algorithm."""


def find_median_speeds(part: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the median steps per second of each contestant of a task."""
    summaries = {} if part is None else part["summary"]
    return {name: summary["steps_per_second"][0] for name, summary in summaries.items() if summary["rounds"]}


def format_ratio(ours: float | None, other: float | None, aim: float | None) -> list[str]:
    """Returns the cells of a ratio and its target, if there is one; a ratio below the target is bold."""
    target = "" if aim is None else f"{aim:g}"
    if ours is None or other is None:
        return ["", target]
    ratio = ours / other
    return [f"{ratio:.2f}" if aim is None or ratio >= aim else f"**{ratio:.2f}**", target]


def format_speed(speed: float | None, *, before: str = "", after: str = "") -> str:
    """Returns a speed with the texts around it, or `not measured`."""
    return "not measured" if speed is None else f"{before}{format_number(speed)}{after}"
