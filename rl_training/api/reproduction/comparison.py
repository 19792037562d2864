"""Compares a reproduction with its original: the policy, the metrics, and what the two were computed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.api.reproduction.original import Points
from rl_training.runs.metadata import read_metadata
from rl_training.runtime.checkpoint import Checkpoint, list_checkpoints, load_trainer_state
from rl_training.runtime.checkpoint.manifest import TRAINER
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer_factory import CALLBACK_OBJECTS

OF_SWEEPS = "TrialCallback"
"""The callback of a sweep's trials. It notes evaluations and may end a run, and changes no number."""


@dataclass(frozen=True)
class PolicyComparison:
    """The policies at the step of the original's checkpoint."""

    step: int
    original: str
    """The hash of its parameters."""
    reproduction: str | None
    """None if the reproduction has no checkpoint at that moment, so that the policies can't be compared."""
    equal: bool | None


@dataclass(frozen=True)
class MetricComparison:
    """The metrics up to the step of the original's checkpoint, without those that measure time."""

    compared: int
    """Number of values of the original."""
    equal: bool | None
    """None if the original has no value."""
    first_difference: dict[str, Any] | None
    """`step`, `name`, `original` and `reproduction` (null if it has no such value)."""


def compare_policies(original: Checkpoint, run: TrainingRun) -> PolicyComparison:
    """Compares the policy of a checkpoint with that of the reproduction at the same step."""
    step, expected = original.num_timesteps, original.policy_sha256
    for found in list_checkpoints(run.checkpoints)[0]:
        if found.num_timesteps == step and _find_moment(original) in (None, _find_moment(found)):
            return PolicyComparison(step, expected, found.policy_sha256, found.policy_sha256 == expected)
    return PolicyComparison(step, expected, None, None)


def _find_moment(checkpoint: Checkpoint) -> tuple[Any, Any] | None:
    """Returns the phase and the iteration of a checkpoint, because a stop can lie within an update."""
    if TRAINER not in checkpoint.manifest.files:
        return None
    progress = load_trainer_state(checkpoint).get("progress")
    return (progress.get("phase"), progress.get("iteration")) if isinstance(progress, dict) else None


def compare_metrics(original: Points, reproduction: Points, until: int) -> MetricComparison:
    """Compares every value of the original up to a step."""
    expected = {point: value for point, value in original.items() if point[0] <= until}
    different = [point for point, value in expected.items() if reproduction.get(point) != value]
    if not different:
        return MetricComparison(len(expected), True if expected else None, None)
    step, name = point = min(different)
    first = {"step": step, "name": name, "original": expected[point], "reproduction": reproduction.get(point)}
    return MetricComparison(len(expected), False, first)


def list_differences(
    original: Checkpoint, metadata: Mapping[str, Any], run: TrainingRun, newest: Checkpoint
) -> tuple[list[dict[str, Any]], list[str]]:
    """Lists what differs between the records of the two runs.

    Args:
        original: The original's checkpoint.
        metadata: The original's `metadata.json`; empty if it is not here.
        run: The reproduction.
        newest: Its newest checkpoint.

    Returns:
        The differences, each with `what`, `original` and `reproduction`; and what the records do not say.
    """
    before, after = _describe(original, metadata), _describe(newest, read_metadata(run.run_dir))
    differences = [
        {"what": what, "original": before[what], "reproduction": after[what]}
        for what in after
        if what in before and before[what] != after[what]
    ]
    unknown = sorted(set(after) - set(before))
    for side, record in (("original", metadata), ("reproduction", read_metadata(run.run_dir))):
        git = record.get("git")
        if isinstance(git, Mapping) and git.get("dirty"):
            unknown.append(f"uncommitted changes of the {side}")
    if named := list_lost_callbacks(metadata):
        differences.append({"what": "callbacks given as objects", "original": named, "reproduction": None})
    return differences, unknown


def list_lost_callbacks(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the names of the callbacks that were given to the original as objects, so that its record lacks them."""
    return [str(name) for name in metadata.get(CALLBACK_OBJECTS, ()) if name != OF_SWEEPS]


def _describe(checkpoint: Checkpoint, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the numbers of a run may depend on, by name, as far as it is recorded."""
    found: dict[str, Any] = {f"version of {name}": text for name, text in checkpoint.manifest.versions.items()}
    extra, machine, git = checkpoint.manifest.extra, metadata.get("machine"), metadata.get("git")
    names = {"device": "device", "threads": "threads", "cpu": "instruction set", "products": "matrix products"}
    found |= {name: extra[key] for key, name in names.items() if key in extra}
    if isinstance(machine, Mapping):
        names = {"cpu_model": "CPU", "thread_variables": "thread variables", "libraries": "libraries"}
        found |= {name: machine[key] for key, name in names.items() if key in machine}
    if "platform" in metadata:
        found["platform"] = metadata["platform"]
    if isinstance(git, Mapping):
        found["commit"] = git.get("commit")
    return found
