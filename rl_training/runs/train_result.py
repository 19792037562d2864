"""The result of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

StopReason = Literal["completed", "callback", "signal", "return_reached", "paused", "pruned", "failed"]
"""Why training ended: its steps were done; a callback, a signal or `evaluation.stop_at_return` ended it, or its sweep
paused or pruned it (the run can be resumed after each of these); or an error."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of `Trainer.train`."""

    metrics: dict[str, float]
    """The newest value of each metric."""
    checkpoint: Path | None
    """The directory of the newest checkpoint."""
    best_checkpoint: Path | None
    """The directory of the checkpoint with the best periodic evaluation."""
    run_dir: Path
    run_uid: str
    num_timesteps: int
    stop_reason: StopReason
    steps_per_second: float
    """Environment steps per second of `train()` in this process, including evaluations and checkpoints."""
    cpu_seconds: float
    """CPU time of the training thread in `train()`."""
    lost_best: Mapping[str, Any] | None = None
    """If the checkpoint with the best evaluation is missing: its `return_mean`, the `reason`, and `num_timesteps`, the
    step of the resume that found it missing."""

    def __fspath__(self) -> str:
        """Returns the run's directory: a result can be passed on wherever the directory of a run can."""
        return str(self.run_dir)
