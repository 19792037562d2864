"""Measures the space left on disks, so that one that fills up is noticed before a run can't write its checkpoint."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rl_training.errors import UserError
from rl_training.system.paths import home

LOW_VARIABLE = "RL_TRAINING_LOW_DISK_GB"
"""The environment variable with the space below which a disk is low."""
LOW_GB = 5.0
"""The same by default: a few checkpoints of the largest replay buffers that are usual."""
ARTIFACTS_VARIABLE = "MLFLOW_ARTIFACTS_DESTINATION"
"""MLflow's environment variable with the folder in which its server keeps artifacts."""


@dataclass(frozen=True)
class Disk:
    """The space left on the disk of a folder."""

    folder: Path
    free: int
    """Bytes."""
    least: float
    """The bytes below which the disk is low."""

    @property
    def is_low(self) -> bool:
        """Whether there is less space than there should be."""
        return self.free < self.least

    def __str__(self) -> str:
        """Returns the space as a sentence's part."""
        return f"{self.free / 1e9:,.1f} GB are left for {self.folder}"


def measure_home() -> Disk:
    """Returns the space left for run directories and the embedded store.

    Raises:
        UserError: `RL_TRAINING_LOW_DISK_GB` is no number.
    """
    return _measure(home())


def measure_disks() -> list[Disk]:
    """Returns the space left for the home and, on the machine of MLflow's server, for its artifacts.

    Raises:
        UserError: `RL_TRAINING_LOW_DISK_GB` is no number.
    """
    folders = [home()]
    address = urlsplit(os.environ.get(ARTIFACTS_VARIABLE, ""))
    if address.path and address.scheme in ("", "file") and Path(unquote(address.path)).is_dir():
        folders.append(Path(unquote(address.path)))
    return [_measure(folder) for folder in folders]


def _measure(folder: Path) -> Disk:
    text = os.environ.get(LOW_VARIABLE) or str(LOW_GB)
    try:
        least = float(text) * 1e9
    except ValueError:
        raise UserError(f"{LOW_VARIABLE} is {text!r}, expected a number of gigabytes such as {LOW_GB:g}") from None
    return Disk(folder, shutil.disk_usage(folder).free, least)
