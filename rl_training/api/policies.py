"""Loads, evaluates and promotes the policy of any source: a directory, an MLflow run or a registered model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import Any

from rl_training.api.promotion import PromotionResult, promote_candidate
from rl_training.config.named_modules import allowing
from rl_training.runtime import workflows
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.loaded_policy import LoadedPolicy
from rl_training.system.download_directories import discard_downloads
from rl_training.tracking.checkpoint_sources import download_checkpoint


@discard_downloads()
def load_policy(source: str | PathLike[str] | Checkpoint, *, allow_modules: Collection[str] = ()) -> LoadedPolicy:
    """Returns the policy of a source, to act with. Modules of environments that its settings name are not imported.

    Args:
        source: A checkpoint, the directory of a checkpoint or a run, an MLflow run id, `runs:/ID`, or
            `models:/NAME@ALIAS`. Of a run, the newest good checkpoint is taken.
        allow_modules: Modules that a received checkpoint may import for its network (`network.body`).

    Raises:
        CheckpointError: There is no good checkpoint, or its policy does not belong to its algorithm.
        ModuleRefused: The network of a received checkpoint needs a module that is not allowed.
        TrackingError: MLflow can't be reached.
        UserError: The source does not exist, the algorithm is not registered here, or it lacks a part of a policy.
    """
    checkpoint = download_checkpoint(source, wanted="policy")
    with allowing(allow_modules):
        return LoadedPolicy(workflows.load_policy(checkpoint), checkpoint.algorithm)


@discard_downloads()
def evaluate(
    source: str | PathLike[str] | Checkpoint,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    allow_modules: Collection[str] = (),
) -> EvaluationResult:
    """Plays held-out episodes with the greedy policy of a source, as `rl-training evaluate` does.

    Args:
        source: See `load_policy`.
        episodes: The number of episodes; by default `evaluation.final_episodes` of the settings.
        seed: The seed from which the episode seeds are drawn; by default `evaluation.seed`. No periodic evaluation uses
            these episode seeds.
        overrides: Settings that differ from the run's, for example `{"evaluation.num_envs": 1}`.
        allow_modules: Modules that a received checkpoint may import.

    Raises:
        CheckpointError: There is no good checkpoint.
        ConfigError: An override is not a valid setting.
        EnvironmentFault: An environment broke its contract.
        ModuleRefused: A received checkpoint names a module that is not allowed.
        TrackingError: MLflow can't be reached.
        UserError: The source does not exist.
    """
    checkpoint = download_checkpoint(source, wanted="policy")
    return workflows.evaluate_checkpoint(
        checkpoint, episodes=episodes, seed=seed, config_overrides=overrides, allow_modules=allow_modules
    )


def promote(
    source: str | PathLike[str],
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    force: str | None = None,
    allow_modules: Collection[str] = (),
) -> PromotionResult:
    """Compares a candidate with the champion, and promotes it if the gate decides so, as `rl-training promote` does.

    Args:
        source: A run, of which the best checkpoint is taken, or a checkpoint: a directory, an MLflow run id,
            `runs:/ID`, or `models:/NAME/VERSION`. The run must be in MLflow.
        overrides: Changes to the run's settings `promotion.*` and `evaluation.*`.
        force: A reason to promote the candidate whatever the gate decides. The episodes are played and recorded anyway.
        allow_modules: Modules that a received candidate may import.

    Returns:
        The decision: the verdict, its reasons, and the registered version. A call with the same arguments returns the
        recorded decision and plays no episodes.

    Raises:
        CheckpointError: The candidate is damaged.
        ConfigError: An override is not valid.
        ModuleRefused: A received candidate names a module that is not allowed.
        TrackingError: MLflow can't be reached, or another promotion did not finish in time.
        UserError: The source does not exist, or the reason is empty.
    """
    return promote_candidate(source, overrides, force=force, allow_modules=allow_modules)
