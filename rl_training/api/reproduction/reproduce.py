"""Trains a run again from its record, and says whether the result is the same to the last bit."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.api.reproduction.comparison import (
    MetricComparison,
    PolicyComparison,
    compare_metrics,
    compare_policies,
    list_differences,
    list_lost_callbacks,
)
from rl_training.api.reproduction.original import (
    REPRODUCES,
    Original,
    read_metrics,
    read_metrics_from_mlflow,
    read_original,
)
from rl_training.api.summary import RunSummary
from rl_training.api.training import check_environment, train_and_evaluate
from rl_training.errors import UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_to_resume
from rl_training.runs.metadata import list_home, read_metadata
from rl_training.runs.single_training import reserve_training
from rl_training.runtime.checkpoint import Checkpoint, newest_good
from rl_training.runtime.ranks.follower import leave_if_follower
from rl_training.runtime.run_utils import TrainingRun, update_metadata
from rl_training.runtime.trainer import Trainer
from rl_training.system.download_directories import discard_downloads
from rl_training.system.paths import home

logger = logging.getLogger(__name__)

HELD_OUT = "heldout/"
"""How the names of the metrics of held-out episodes begin."""
RESULT = "reproduction"
"""The field of a reproduction's `metadata.json` with the result of the comparison."""


@dataclass(frozen=True)
class Reproduction:
    """A run that was trained again, compared with the original."""

    original: str
    """The `run_uid` of the original."""
    summary: RunSummary
    """The new run."""
    policy: PolicyComparison
    metrics: MetricComparison
    differences: list[dict[str, Any]]
    """What the two runs were computed with, where it differs."""
    unknown: list[str]
    """What the records do not say, by name."""

    @property
    def stopped(self) -> bool:
        """Whether a signal stopped the reproduction before the step of the original."""
        return self.summary.stop_reason == "signal"

    @property
    def equal(self) -> bool:
        """Whether nothing that could be compared differs, and something could."""
        results = {self.policy.equal, self.metrics.equal}
        return not self.stopped and False not in results and True in results

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {
            "equal": self.equal,
            "stopped": self.stopped,
            "original": self.original,
            "run_uid": self.summary.run_uid,
            "run_id": self.summary.run_id,
            "run_dir": str(self.summary.run_dir),
            "policy": asdict(self.policy),
            "metrics": asdict(self.metrics),
            "differences": self.differences,
            "unknown": self.unknown,
        }

    def lines(self) -> list[str]:
        """Returns the result in words."""
        if self.stopped:
            done = f"{self.summary.num_timesteps:,} of {self.policy.step:,} steps"
            return [f"stopped at {done}; run the same command again to continue", f"run: {self.summary.run_dir}"]
        return [*self._describe_result(), f"run: {self.summary.run_dir}"]

    def _describe_result(self) -> Iterator[str]:
        at, words = f"at step {self.policy.step:,}", {True: "equal", False: "not equal", None: "not compared"}
        yield f"policy {at}: {words[self.policy.equal]}"
        yield f"metrics up to it: {words[self.metrics.equal]} ({self.metrics.compared:,} values)"
        if first := self.metrics.first_difference:
            values = f"{first['original']!r} -> {first['reproduction']!r}"
            yield f"first difference: {first['name']} at step {first['step']:,}: {values}"
        for each in self.differences:
            yield f"differs: {each['what']}: {each['original']} -> {each['reproduction']}"
        if self.unknown and not self.equal:
            yield f"not recorded: {', '.join(self.unknown)}"


@reserve_training()
@discard_downloads()
def reproduce(
    run: str | PathLike[str],
    *,
    allow_modules: Collection[str] = (),
    track: bool = True,
    offline: bool = False,
    progress: bool | None = None,
) -> Reproduction:
    """Trains a run again from its record, in a new run, and compares weights and metrics to the last bit.

    The original is not touched. A run that did not come to its end is reproduced up to its newest checkpoint. The new
    run is tagged as a reproduction and is not promoted. If a signal stops it, the next call continues it.

    Args:
        run: The directory of a run or checkpoint, an MLflow run id, a `run_uid` or `runs:/ID`.
        allow_modules: Modules that a received run may import.
        track: See `rl_training.train`.
        offline: See `rl_training.train`.
        progress: See `rl_training.train`.

    Raises:
        UserError: The run can't be trained again from its record, for example because it is a fork, was resumed
            inexactly, or had plain secrets.
        RunFailed: Training failed.
    """
    home()
    original = read_original(run, allow_modules)
    if named := list_lost_callbacks(original.metadata):
        logger.warning("the original had callbacks that its record does not have: %s", ", ".join(named))
    trainer = _continue(original, allow_modules) or _begin(original)
    if not original.is_complete:
        trainer.stop.pause_at = original.checkpoint.num_timesteps
    summary = train_and_evaluate(trainer, track=track, offline=offline, progress=progress)
    return _compare(original, trainer.run, summary)


def _begin(original: Original) -> Trainer:
    leave_if_follower(original.config)
    validation = check_environment(original.config).to_record()
    trainer = DefaultExperimentManager().setup(original.config, validation=validation)
    update_metadata(trainer.run, {REPRODUCES: original.checkpoint.run_uid})
    return trainer


def _continue(original: Original, allow_modules: Collection[str]) -> Trainer | None:
    """Returns the trainer of a reproduction of the same run that was stopped; None if there is none."""
    for run_dir in list_home():
        checkpoint = _find_stopped(run_dir, original.checkpoint)
        if checkpoint is not None:
            logger.info("continuing the reproduction in %s", run_dir)
            config = config_to_resume(checkpoint, allow_modules=allow_modules)
            leave_if_follower(config)
            validation = check_environment(config).to_record()
            return DefaultExperimentManager().setup(config, checkpoint=checkpoint, validation=validation)
    return None


def _find_stopped(run_dir: Path, original: Checkpoint) -> Checkpoint | None:
    with suppress(UserError):
        metadata = read_metadata(run_dir)
        if metadata.get(REPRODUCES) == original.run_uid and RESULT not in metadata:
            found, _ = newest_good(run_dir / "checkpoints")
            return found if found is not None and found.num_timesteps < original.num_timesteps else None
    return None


def _compare(original: Original, run: TrainingRun, summary: RunSummary) -> Reproduction:
    checkpoint, until = original.checkpoint, original.checkpoint.num_timesteps
    if original.run_dir is not None:
        expected = read_metrics(original.run_dir)
    else:
        expected = read_metrics_from_mlflow(original.run_id) if original.run_id is not None else {}
    if not original.is_complete:  # a run that is paused plays no held-out episodes, whose returns the policy decides
        expected = {point: value for point, value in expected.items() if not point[1].startswith(HELD_OUT)}
    newest, _ = newest_good(run.checkpoints)
    assert newest is not None  # training always ends with a checkpoint
    differences, unknown = list_differences(checkpoint, original.metadata, run, newest)
    policy = compare_policies(checkpoint, run)
    metrics = compare_metrics(expected, read_metrics(run.run_dir), until)
    result = Reproduction(checkpoint.run_uid, summary, policy, metrics, differences, unknown)
    if not result.stopped:
        update_metadata(run, {RESULT: {"equal": result.equal, "policy": asdict(policy), "metrics": asdict(metrics)}})
    return result
