"""Compares two finished runs bit for bit: their recorded data, and the states from which they would resume.

The comparison leaves out what always differs: `time/*` metrics, times of day, paths, and the identity of a run.
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
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer

UNCOMPARED = "time/"
"""Prefix of the metrics that always differ."""

SHOWN = 5
"""Number of differences of one kind that are listed; the others are counted."""

Point = tuple[str, int, float]


def find_differences(expected: Path, actual: Path, added: set[str] | None = None) -> list[str]:
    """Compares two completed runs with the same settings.

    Args:
        expected: The directory of the undisturbed run.
        actual: The directory of the other run.
        added: If the other run was made by later code, which may record more: the names of metrics and keys that only
            it has are put into this set, and are no difference.

    Returns:
        A line for each difference in the metrics, the evaluations with all their episodes, the recorded best
        checkpoint, the final policy, the final training state with the optimizer, and the replay buffer.
    """
    return [
        *compare_points(read_points(expected), read_points(actual), added),
        *_shorten_list(compare_values(read_evaluations(expected), read_evaluations(actual), "evaluations", added)),
        *_shorten_list(compare_values(load_final_state(expected), load_final_state(actual), "final state", added)),
    ]


def read_points(run_dir: Path) -> list[Point]:
    """Returns (metric, step, value) for each point in `metrics.jsonl`, in the order of the file."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(key, line["step"], value) for line in lines for key, value in line["metrics"].items()]


def compare_points(expected: Sequence[Point], actual: Sequence[Point], added: set[str] | None = None) -> list[str]:
    """Returns a line for each metric point that only one of the runs has, or that a run has twice."""
    lines = []
    if added is not None:
        known = {key for key, _, _ in expected}
        added.update(key for key, _, _ in actual if key not in known)
        actual = [point for point in actual if point[0] in known]
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
    return _shorten_list(lines)


def read_evaluations(run_dir: Path) -> dict[str, Any]:
    """Returns the evaluations of a run by file name, and the record of its best checkpoint."""
    artifacts = run_dir / "artifacts"
    paths = [*sorted((artifacts / "evaluations").glob("*.json")), artifacts / "evaluation.json"]
    paths.append(run_dir / "checkpoints" / "best.json")
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()}


def load_final_state(run_dir: Path) -> dict[str, Any]:
    """Returns the complete content of the newest checkpoint of a run, including the replay buffer."""
    checkpoint = find_checkpoint(run_dir)
    state: dict[str, Any] = {
        "num_timesteps": checkpoint.num_timesteps,
        "policy_sha256": checkpoint.policy_sha256,
        "policy": load_policy_state(checkpoint),
        "trainer": load_trainer_state(checkpoint),
    }
    trainer = _resume_quietly(run_dir)
    try:
        if isinstance(trainer, OffPolicyTrainer):
            state["replay"] = {"total": trainer.buffer.total, **trainer.buffer.arrays()}
    finally:
        trainer.discard()
    return state


def compare_values(expected: Any, actual: Any, where: str, added: set[str] | None = None) -> Iterator[str]:
    """Yields a line for each part in which two nested values differ in a bit, type or shape.

    Args:
        expected: Mappings and sequences of tensors, arrays, numbers, strings and None.
        actual: A value of the same kinds.
        where: The name of the values in the lines.
        added: See `find_differences`.
    """
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            if key in expected and key in actual:
                yield from compare_values(expected[key], actual[key], f"{where}/{key}", added)
            elif added is not None and key in actual:
                added.add(str(key))
            else:
                yield f"{where}/{key} is only in the {'expected' if key in expected else 'actual'} run"
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        missing = object()
        for i, (one, other) in enumerate(zip_longest(expected, actual, fillvalue=missing)):
            if one is missing or other is missing:
                yield f"{where} has {len(expected)} entries in the expected run and {len(actual)} in the actual one"
                return
            yield from compare_values(one, other, f"{where}/{i}", added)
    elif isinstance(expected, torch.Tensor | np.ndarray) and isinstance(actual, torch.Tensor | np.ndarray):
        yield from _compare_arrays(np.asarray(expected), np.asarray(actual), where)
    elif type(expected) is not type(actual) or repr(expected) != repr(actual):  # by repr, NaN equals NaN
        yield f"{where} is {_shorten_text(expected)} in the expected run and {_shorten_text(actual)} in the actual one"


def _compare_arrays(expected: np.ndarray, actual: np.ndarray, where: str) -> Iterator[str]:
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        yield (
            f"{where} is {list(expected.shape)} {expected.dtype} in the expected run and "
            f"{list(actual.shape)} {actual.dtype} in the actual one"
        )
    elif expected.tobytes() != actual.tobytes():
        yield f"{where} differs in {int((expected != actual).sum())} of {expected.size} places"


def _resume_quietly(run_dir: Path) -> Any:
    logging.disable(logging.INFO)  # each resume would log that the run is complete
    try:
        return DefaultExperimentManager().resume(run_dir)
    finally:
        logging.disable(logging.NOTSET)


def _shorten_list(lines: Iterator[str] | list[str]) -> list[str]:
    lines = list(lines)
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{lines[0].split(' ')[0].split('/')[0].strip(':')}: {more} more"]


def _shorten_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
