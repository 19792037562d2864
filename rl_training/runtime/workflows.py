"""Loads and evaluates the policy of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.config.named_modules import allowing, list_modules
from rl_training.config.settings import TrainConfig
from rl_training.experiment.loading import config_of_checkpoint, require_policy_permission
from rl_training.experiment.registry import get_algorithm
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import Checkpoint, find_checkpoint
from rl_training.runtime.checkpoint.manifest import POLICY
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.policy import Policy, require_policy
from rl_training.seeding import episode_seeds
from rl_training.state_checks import restoring


def resolve_local_checkpoint(source: str | Path | Checkpoint) -> Checkpoint:
    """Returns a verified checkpoint, given as a checkpoint, its directory, or a run's directory.

    Raises:
        CheckpointError: There is no good checkpoint.
    """
    return source if isinstance(source, Checkpoint) else find_checkpoint(source)


def load_policy(checkpoint: str | Path | Checkpoint) -> Policy:
    """Returns the greedy policy of a checkpoint of any algorithm, without importing the environment's modules.

    A module that the network is made with (`network.body`) is imported if it is allowed; see
    `rl_training.config.named_modules`.

    Args:
        checkpoint: A checkpoint, its directory, or a run's directory, of which the newest good one is taken.

    Raises:
        CheckpointError: There is no good checkpoint, or its policy does not belong to its algorithm.
        ModuleRefused: The network of a received checkpoint needs a module that is not allowed.
        UserError: The algorithm is not registered here, or its policy lacks a part.
    """
    checkpoint = resolve_local_checkpoint(checkpoint)
    load = get_algorithm(checkpoint.algorithm).load_policy
    require_policy_permission(checkpoint)
    with restoring(checkpoint.path / POLICY, "a policy", checkpoint.algorithm):
        policy = load(checkpoint)
    return require_policy(policy, checkpoint.algorithm)


def evaluate_checkpoint(
    checkpoint: str | Path | Checkpoint,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    config_overrides: Mapping[str, Any] | Sequence[str] | None = None,
    config: TrainConfig | None = None,
    allow_modules: Collection[str] = (),
    stop: StopFlag | None = None,
) -> EvaluationResult:
    """Plays held-out episodes with the greedy policy of a checkpoint, in new environments.

    Args:
        checkpoint: A checkpoint, its directory, or a run's directory, of which the newest good one is taken.
        episodes: The number of episodes; by default `evaluation.final_episodes` of the settings.
        seed: The seed from which the episode seeds are drawn; by default `evaluation.seed`. No periodic evaluation uses
            these episode seeds.
        seeds: The episode seeds, instead of `episodes` and `seed`.
        config_overrides: Settings that differ from the checkpoint's, for example `{"env_kwargs.render": True}`.
        config: The settings, instead of those in the checkpoint, in which plain secrets are hidden.
        allow_modules: Modules that a received checkpoint may import.
        stop: A stop flag, polled between steps.

    Raises:
        CheckpointError: There is no good checkpoint.
        ConfigError: An override is not a valid setting.
        EnvironmentFault: An environment broke its contract.
        ModuleRefused: A received checkpoint names a module that is not allowed.
        StopTraining: A stop was requested.
    """
    checkpoint = resolve_local_checkpoint(checkpoint)
    config = config or config_of_checkpoint(checkpoint, config_overrides or (), allow_modules=allow_modules)
    if seeds is None:
        count = config.evaluation.final_episodes if episodes is None else episodes
        seeds = episode_seeds(config.evaluation.seed if seed is None else seed, "held_out", count)
    with allowing(list_modules(config).values()):
        policy = load_policy(checkpoint)
    return evaluate_policy(policy, config, seeds, stop=stop)
