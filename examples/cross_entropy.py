"""A custom algorithm: the cross-entropy method, registered next to the built-in algorithms.

Each generation draws one linear policy per environment from a Gaussian over policies, plays an episode with each, and
fits the Gaussian to the best policies (Szita and Lorincz 2006, "Learning Tetris Using the Noisy Cross-Entropy Method",
whose constant noise keeps the deviation from collapsing). The algorithm takes discrete actions. To train on CartPole:

    python examples/cross_entropy.py

The trainer contains only the loop; the base class provides evaluation, checkpoints, resuming, callbacks and tracking.
An installed package offers its algorithm to the command line and the flows by the entry point

    [project.entry-points."rl_training.algorithms"]
    cross_entropy = "cross_entropy:SPEC"

Shapes: N environments (and policies per generation), O features of an observation, A actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from rl_training import (
    AlgorithmSpec,
    TrainConfig,
    TrainResult,
    evaluate_checkpoint,
    register_algorithm,
)
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state
from rl_training.runtime.policy import GreedyPolicy, Policy
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.trainer_factory import make_trainer
from rl_training.seeding import generator, generator_state, restore_generator


class CrossEntropyConfig(TrainConfig):
    """Settings of the cross-entropy method."""

    algo: Literal["cross_entropy"] = "cross_entropy"
    """The algorithm."""
    elite_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Fraction of a generation to which the next one is fitted."""
    noise: float = Field(default=0.1, ge=0)
    """Added to the fitted deviation."""


class CrossEntropyTrainer(Trainer):
    """Trains in generations; in each, every environment plays one episode with its own policy."""

    config: CrossEntropyConfig

    def __init__(
        self,
        config: CrossEntropyConfig,
        run: TrainingRun,
        callbacks: Iterable[Callback] = (),
        *,
        stop: StopFlag | None = None,
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.envs = TrainingEnvs(config, gamma=None)
        observations, actions = self.envs.encoder.shape[0] + 1, self.envs.single_action_space.n  # one more for the bias
        self.mean = np.zeros((observations, actions))
        self.deviation = np.ones((observations, actions))
        self.rng = generator(config.seed, "action")
        self._draw_generation()

    def _start(self) -> None:
        self.envs.start()

    def _learn(self) -> None:
        while self.num_timesteps < self.config.total_timesteps:
            while np.isnan(self.scores).any() and self.num_timesteps < self.config.total_timesteps:
                self.between_steps()
                step = self.envs.step(_act(self.envs.normalized(), self.candidates))
                for episode in step.episodes:
                    if np.isnan(self.scores[episode.env_index]):
                        self.scores[episode.env_index] = episode.return_
                self.count_step(step)
            self._emit("on_collect_end", {})
            self._fit()

    def _draw_generation(self) -> None:
        shape = (self.config.num_envs, *self.mean.shape)
        self.candidates = self.mean + self.deviation * self.rng.standard_normal(shape)  # [N, O+1, A]
        self.scores = np.full(self.config.num_envs, np.nan)  # [N], NaN until a policy's episode has ended

    def _fit(self) -> None:
        """Fits the Gaussian to the best policies of a complete generation; the last one of a run may be incomplete."""
        if not np.isnan(self.scores).any():
            elites = max(1, round(self.config.elite_fraction * self.config.num_envs))
            best = self.candidates[np.argsort(-self.scores, kind="stable")[:elites]]
            self.mean = best.mean(axis=0)
            self.deviation = best.std(axis=0) + self.config.noise
            self._draw_generation()
            self.progress.iteration += 1
        metrics: dict[str, float] = {}
        if self._log_due():
            self.progress.last_log = self.num_timesteps
            metrics = {**self.progress.rollout_metrics(), "train/deviation": float(self.deviation.mean())}
        self._emit("on_update_end", metrics)

    def policy(self) -> Policy:
        """Returns the policy at the mean of the Gaussian."""
        return _make_policy(self.mean, self.envs.single_observation_space, self.envs.single_action_space)

    def _policy_state(self) -> dict[str, Any]:
        return {
            "mean": torch.from_numpy(self.mean),
            "observation_space": space_to_json(self.envs.single_observation_space),
            "action_space": space_to_json(self.envs.single_action_space),
        }

    def _trainer_state(self) -> dict[str, Any]:
        return {
            "envs": self.envs.state_dict(),
            "deviation": torch.from_numpy(self.deviation),
            "candidates": torch.from_numpy(self.candidates),
            "scores": torch.from_numpy(self.scores),
            "rng": generator_state(self.rng),
        }

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.mean = policy["mean"].numpy()
        self.deviation, self.candidates = trainer["deviation"].numpy(), trainer["candidates"].numpy()
        self.scores = trainer["scores"].numpy()
        self.rng = restore_generator(trainer["rng"])
        return self.envs.load_state_dict(trainer["envs"])

    def _close(self) -> None:
        self.envs.close()


def _act(observation: npt.NDArray[Any], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Returns the actions with the largest scores, [N], for weights [N, O+1, A] (one policy per row) or [O+1, A]."""
    features = np.concatenate([observation, np.ones((len(observation), 1))], axis=1)[:, None, :]  # [N, 1, O+1]
    return (features @ weights)[:, 0].argmax(axis=1)


def _make_policy(
    mean: npt.NDArray[np.float64], observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> Policy:
    weights = mean.copy()
    return GreedyPolicy(
        encoder=ObservationEncoder(observation_space),
        normalizer=None,
        act_greedy=lambda observation: _act(observation, weights),
        codec=ActionCodec(action_space),
        observation_space=observation_space,
        action_space=action_space,
    )


def check_spaces(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Sequence[str]:
    """Returns why the algorithm can't train on these spaces, one sentence per reason."""
    problems = []
    if not isinstance(action_space, gym.spaces.Discrete):
        problems.append(f"cross_entropy takes Discrete actions, but the environment has {action_space}")
    if ObservationEncoder(observation_space).kind != "vector":
        problems.append(f"cross_entropy takes vector observations, but the environment has {observation_space}")
    return problems


def load_policy(checkpoint: Checkpoint) -> Policy:
    """Loads the policy of a checkpoint."""
    state = load_policy_state(checkpoint)
    spaces = space_from_json(state["observation_space"]), space_from_json(state["action_space"])
    return _make_policy(state["mean"].numpy(), *spaces)


def make_cross_entropy_trainer(
    config: CrossEntropyConfig,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: str | Path | Checkpoint | None = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Returns a trainer that starts a run, or resumes from a checkpoint."""
    return make_trainer(CrossEntropyTrainer, config, callbacks, resume_from=resume_from, stop=stop)


def train_cross_entropy(
    config: CrossEntropyConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains from the start, or resumes from a checkpoint."""
    return make_cross_entropy_trainer(config, callbacks, resume_from=resume_from).train()


SPEC = AlgorithmSpec(
    name="cross_entropy",
    config_type=CrossEntropyConfig,
    train=train_cross_entropy,
    make_trainer=make_cross_entropy_trainer,
    check_spaces=check_spaces,
    load_policy=load_policy,
)
register_algorithm(SPEC)


def main() -> None:
    """Trains on CartPole and evaluates the final policy."""
    config = CrossEntropyConfig(env_id="CartPole-v1", num_envs=16, total_timesteps=60_000)
    result = train_cross_entropy(config)
    assert result.checkpoint is not None
    evaluation = evaluate_checkpoint(result.checkpoint, episodes=20)
    print(f"mean return {evaluation.return_mean:.1f} over {evaluation.episodes} held-out episodes; {result.run_dir}")


if __name__ == "__main__":
    main()
