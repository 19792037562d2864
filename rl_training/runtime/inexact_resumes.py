"""Detects resumes that may not be exact, and records them with the run and its checkpoints.

The list of inexact resumes, each with its step and reasons, is in the `metadata.json` of the run, in the manifest of
every later checkpoint, in the summary of the run, and in a tag of the MLflow run.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from rl_training.envs.training_envs import LOST_EPISODE
from rl_training.runs.metadata import read_metadata
from rl_training.runs.versions import versions
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.run_utils import TrainingRun, update_metadata

logger = logging.getLogger(__name__)

INEXACT = "inexact"
"""The key of the list in a manifest's `extra`, in `metadata.json` and in a summary."""
ENVIRONMENTS = "environments"
"""The key in an entry of what callbacks, or the loss of an actor, did to the environments; resumes have none."""
LOST_BEST = "lost_best"
"""The key of the list of lost best checkpoints in `metadata.json`, and of the newest one in a summary."""
MAX_INDICES = 8
"""The largest number of environments that a message lists; native environments are many."""


UNRECORDED = {"convolutions": "channels first"}
"""What a manifest without these keys stands for: the only way of its version, and still that of GPUs."""


def describe_computer(device: torch.device, threads: int, images: bool) -> dict[str, Any]:
    """Describes what floating-point sums depend on, for a manifest's `extra`.

    Args:
        device: The device that learns.
        threads: The setting `threads`.
        images: Whether observations have images; then the memory order of the CPU's convolutions is included.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    cpu = f"{platform.machine()} {capability}"
    found = {"device": str(device), "threads": threads, "cpu": cpu, "products": describe_matrix_library()}
    return found | {"convolutions": "channels last"} if images and device.type == "cpu" else found


@cache
def describe_matrix_library() -> str:
    """Names the library of numpy's matrix products and the processor that it detects, which decide how sums round."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]] or pools  # not the library of scipy
    return ", ".join(f"{p['internal_api']} {p['version']} {p.get('architecture') or ''}".strip() for p in own)


def list_inexact_resumes(
    checkpoint: Checkpoint,
    fresh: Sequence[int] = (),
    now: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Lists the inexact resumes in the history of a run that continues from a checkpoint; logs this one if inexact.

    Args:
        checkpoint: The checkpoint.
        fresh: The indices of environments that could not be restored and began a new episode.
        now: The result of `describe_computer` on this machine; None if nothing more is computed.
        settings: Settings that differ and make the run inexact, in words.

    Returns:
        For each inexact resume its `num_timesteps`, the indices of `fresh_episodes`, and what `changed` in callbacks,
        device, threads, CPU, order of convolutions and versions.
    """
    found = list(checkpoint.manifest.extra.get(INEXACT, []))
    changed = [] if now is None else [*_list_changes(checkpoint, now), *settings]
    if fresh or changed:
        found.append({"num_timesteps": checkpoint.num_timesteps, "fresh_episodes": list(fresh), "changed": changed})
        logger.warning("this resume is not exact, %s", explain_resume(found[-1]))
    return found


def record_inexact_resumes(run: TrainingRun, resumes: Sequence[Mapping[str, Any]]) -> None:
    """Adds inexact resumes to a run's `metadata.json`; earlier entries stay."""
    known = read_metadata(run.run_dir).get(INEXACT, [])
    if new := [resume for resume in resumes if resume not in known]:
        update_metadata(run, {INEXACT: [*known, *new]})


def record_lost_best(run: TrainingRun, lost: Mapping[str, Any] | None) -> None:
    """Adds to a run's `metadata.json` that its best checkpoint is missing; see `TrainResult.lost_best`."""
    known = read_metadata(run.run_dir).get(LOST_BEST, [])
    if lost is not None and all(entry["return_mean"] != lost["return_mean"] for entry in known):
        update_metadata(run, {LOST_BEST: [*known, lost]})


def list_changes_of_envs(
    known: Sequence[Mapping[str, Any]], changes: Sequence[str], num_timesteps: int
) -> list[dict[str, Any]]:
    """Lists what callbacks have done to the environments that no resume repeats; logs what is new.

    Args:
        known: The entries of the run so far.
        changes: The result of `TrainingEnvs.inexact_changes`.
        num_timesteps: The step of the checkpoint from which resumes are not exact.

    Returns:
        An entry with the new `environments` changes; empty without such changes.
    """
    earlier = {change for entry in known for change in entry.get(ENVIRONMENTS, ())}
    new = [change for change in changes if change not in earlier]
    if not new:
        return []
    entry = {"num_timesteps": num_timesteps, "fresh_episodes": [], "changed": [], ENVIRONMENTS: new}
    logger.warning("resumes of this run are not exact: %s", explain_inexact(entry))
    return [entry]


def explain_inexact(entry: Mapping[str, Any]) -> str:
    """Returns why a run is not exact, in words: after a resume, or after what callbacks did to its environments."""
    return explain_resume(entry) if entry.get(ENVIRONMENTS) else f"resumed {explain_resume(entry)}"


def explain_resume(entry: Mapping[str, Any]) -> str:
    """Returns the step of an entry and its reasons, in words."""
    parts = []
    everything = entry.get(ENVIRONMENTS, ())
    lost = [change.removeprefix(LOST_EPISODE) for change in everything if change.startswith(LOST_EPISODE)]
    if lost:
        parts.append(
            f"the episodes of environments {_name_indices(lost)} were lost with their Ray actor and cut, because the "
            f"environment is not deterministic"
        )
    if changes := [change for change in everything if not change.startswith(LOST_EPISODE)]:
        parts.append(f"callbacks changed the environments in ways that no resume repeats ({', '.join(changes)})")
    if entry["fresh_episodes"]:
        parts.append(
            f"the episodes of environments {_name_indices(entry['fresh_episodes'])} could not be restored, so new ones "
            f"began (the environment is not deterministic, or native)"
        )
    if entry["changed"]:
        parts.append(f"sums may differ from here on ({', '.join(entry['changed'])})")
    return f"at step {entry['num_timesteps']:,}: {'; '.join(parts)}"


def _name_indices(indices: Sequence[Any]) -> str:
    named = list(map(str, indices))
    return ", ".join(named if len(named) <= MAX_INDICES else [*named[:MAX_INDICES], "..."])


def _list_changes(checkpoint: Checkpoint, now: Mapping[str, Any]) -> Iterator[str]:
    extra = {**UNRECORDED, **checkpoint.manifest.extra}
    for before, after in ((extra, now), (checkpoint.manifest.versions, versions())):
        for name, value in after.items():
            if name in before and before[name] != value:
                yield f"{name}: {before[name]} -> {value}"
