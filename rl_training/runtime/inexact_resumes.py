"""Resumes that may not be exact: found out when a checkpoint is taken back, and kept with the run and its checkpoints.

A list of them, each with the step and the reasons, stands in the run's `metadata.json`, in the manifest of every later
checkpoint, in the run's summary, and as a tag of the MLflow run.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from rl_training.runs.metadata import read_metadata
from rl_training.runs.versions import versions
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.run_utils import TrainingRun, update_metadata

logger = logging.getLogger(__name__)

INEXACT = "inexact"
"""The key of the list in a manifest's `extra`, in `metadata.json` and in a summary."""
MOST_INDICES = 8
"""Environments that are named in words; native ones are many."""


def describe_computer(device: torch.device, threads: int) -> dict[str, Any]:
    """Returns what sums depend on beside versions, for a manifest's `extra`."""
    capability = torch.backends.cpu.get_cpu_capability()
    cpu = f"{platform.machine()} {capability}"
    return {"device": str(device), "threads": threads, "cpu": cpu, "products": product_kernels()}


@cache
def product_kernels() -> str:
    """Returns the library of numpy's matrix products and the processor it takes this one for, which decide the sums."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]] or pools  # not that of scipy
    return ", ".join(f"{p['internal_api']} {p['version']} {p.get('architecture') or ''}".strip() for p in own)


def list_inexact_resumes(
    checkpoint: Checkpoint, fresh: Sequence[int] = (), now: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Returns the resumes that a run which goes on from a checkpoint descends from, and which may not be exact.

    Args:
        checkpoint: What it goes on from.
        fresh: The environments that could not be brought back, and began a fresh episode.
        now: What `computer` returns here; None where nothing is computed any more.

    Returns:
        Of each its `num_timesteps`, the indices of `fresh_episodes`, and what `changed` in device, threads, CPU and
        versions. The last may be this one; it is said, then.
    """
    found = list(checkpoint.manifest.extra.get(INEXACT, []))
    changed = [] if now is None else list(_changes(checkpoint, now))
    if fresh or changed:
        found.append({"num_timesteps": checkpoint.num_timesteps, "fresh_episodes": list(fresh), "changed": changed})
        logger.warning("this resume is not exact, %s", explain_resume(found[-1]))
    return found


def record_inexact_resumes(run: TrainingRun, resumes: Sequence[Mapping[str, Any]]) -> None:
    """Adds inexact resumes to a run's `metadata.json`; what it has of them stays, whatever was made again since."""
    known = read_metadata(run.run_dir).get(INEXACT, [])
    if new := [resume for resume in resumes if resume not in known]:
        update_metadata(run, {INEXACT: [*known, *new]})


def explain_resume(entry: Mapping[str, Any]) -> str:
    """Returns why a resume was not exact, in words."""
    parts = []
    if entry["fresh_episodes"]:
        indices = list(map(str, entry["fresh_episodes"]))
        named = ", ".join(indices if len(indices) <= MOST_INDICES else [*indices[:MOST_INDICES], "..."])
        parts.append(
            f"the episodes of environments {named} could not be brought back, so they began fresh ones (the "
            f"environment is not deterministic, or native)"
        )
    if entry["changed"]:
        parts.append(f"sums may differ from here on ({', '.join(entry['changed'])})")
    return f"at step {entry['num_timesteps']:,}: {'; '.join(parts)}"


def _changes(checkpoint: Checkpoint, now: Mapping[str, Any]) -> Iterator[str]:
    for before, after in ((checkpoint.manifest.extra, now), (checkpoint.manifest.versions, versions())):
        for name, value in after.items():
            if name in before and before[name] != value:
                yield f"{name}: {before[name]} -> {value}"
