"""Whether two finished runs are the same to the last bit: what they have recorded, and what they would go on from.

Left out is what differs by nature: `time/*` metrics, times of day, paths, and the identity of a run.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import find_checkpoint, load_policy_state, load_trainer_state
from rl_training.runtime.off_policy_trainer import OffPolicyTrainer

UNCOMPARED = "time/"
"""Metrics of this prefix differ each time by nature."""

SHOWN = 5
"""Differences of one kind that are listed; the others are counted."""

Point = tuple[str, int, float]


def differences(expected: Path, actual: Path) -> list[str]:
    """Compares two completed runs of the same settings.

    Args:
        expected: The directory of the run that nothing has disturbed.
        actual: The directory of the other one.

    Returns:
        A line for each difference in metrics, evaluations with all their episodes, the best checkpoint on record, the
        final policy, the optimiser and all else of the final training state, and the replay buffer; none where they are
        the same.
    """
    return [
        *compare_points(read_points(expected), read_points(actual)),
        *_shortened(compare_values(read_evaluations(expected), read_evaluations(actual), "evaluations")),
        *_shortened(compare_values(final_state(expected), final_state(actual), "final state")),
    ]


def read_points(run_dir: Path) -> list[Point]:
    """Returns (metric, step, value) of each point in `metrics.jsonl`, in the order in which they stand there."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(key, line["step"], value) for line in lines for key, value in line["metrics"].items()]


def compare_points(expected: Sequence[Point], actual: Sequence[Point]) -> list[str]:
    """Returns a line for each metric point that only one of two runs has, or that a run has twice."""
    lines = []
    for name, points in (("expected", expected), ("actual", actual)):
        counts = Counter((key, step) for key, step, _ in points)
        lines += [
            f"metrics: {key} at step {step} is in the {name} run twice" for (key, step), n in counts.items() if n > 1
        ]
    one, other = ({point for point in points if not point[0].startswith(UNCOMPARED)} for points in (expected, actual))
    for name, points in (("expected", one - other), ("actual", other - one)):
        lines += [
            f"metrics: only the {name} run has {key} = {value!r} at step {step}"
            for key, step, value in sorted(points, key=lambda point: (point[1], point[0]))
        ]
    return _shortened(lines)


def read_evaluations(run_dir: Path) -> dict[str, Any]:
    """Returns the evaluations of a run by their files' names, and which of its checkpoints is the best."""
    artifacts = run_dir / "artifacts"
    paths = [*sorted((artifacts / "evaluations").glob("*.json")), artifacts / "evaluation.json"]
    paths.append(run_dir / "checkpoints" / "best.json")
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()}


def final_state(run_dir: Path) -> dict[str, Any]:
    """Returns all that the newest checkpoint of a run holds, its replay buffer included."""
    checkpoint = find_checkpoint(run_dir)
    state: dict[str, Any] = {
        "num_timesteps": checkpoint.num_timesteps,
        "policy_sha256": checkpoint.policy_sha256,
        "policy": load_policy_state(checkpoint),
        "trainer": load_trainer_state(checkpoint),
    }
    trainer = _quietly_resumed(run_dir)
    try:
        if isinstance(trainer, OffPolicyTrainer):
            state["replay"] = {"total": trainer.buffer.total, **trainer.buffer.arrays()}
    finally:
        trainer.discard()
    return state


def compare_values(expected: Any, actual: Any, where: str) -> Iterator[str]:
    """Yields a line for each place at which two nested values differ: bit for bit, and in type and shape.

    Args:
        expected: Mappings and sequences of tensors, arrays, numbers, strings and None.
        actual: The same.
        where: What the values are.
    """
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            if key in expected and key in actual:
                yield from compare_values(expected[key], actual[key], f"{where}/{key}")
            else:
                yield f"{where}/{key} is only in the {'expected' if key in expected else 'actual'} run"
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        missing = object()
        for i, (one, other) in enumerate(zip_longest(expected, actual, fillvalue=missing)):
            if one is missing or other is missing:
                yield f"{where} has {len(expected)} entries in the expected run and {len(actual)} in the actual one"
                return
            yield from compare_values(one, other, f"{where}/{i}")
    elif isinstance(expected, torch.Tensor | np.ndarray) and isinstance(actual, torch.Tensor | np.ndarray):
        yield from _compare_arrays(np.asarray(expected), np.asarray(actual), where)
    elif type(expected) is not type(actual) or repr(expected) != repr(actual):  # repr, by which a NaN equals itself
        yield f"{where} is {_short(expected)} in the expected run and {_short(actual)} in the actual one"


def _compare_arrays(expected: np.ndarray, actual: np.ndarray, where: str) -> Iterator[str]:
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        yield (
            f"{where} is {list(expected.shape)} {expected.dtype} in the expected run and "
            f"{list(actual.shape)} {actual.dtype} in the actual one"
        )
    elif expected.tobytes() != actual.tobytes():
        yield f"{where} differs in {int((expected != actual).sum())} of {expected.size} places"


def _quietly_resumed(run_dir: Path) -> Any:
    logging.disable(logging.INFO)  # each would say that the run is complete
    try:
        return DefaultExperimentManager().resume(run_dir)
    finally:
        logging.disable(logging.NOTSET)


def _shortened(lines: Iterator[str] | list[str]) -> list[str]:
    lines = list(lines)
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{lines[0].split(' ')[0].split('/')[0].strip(':')}: {more} more"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
