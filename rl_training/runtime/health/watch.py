"""The callback that warns of training that goes bad.

It works on what is logged anyway: the metrics of updates at log points, and the periodic evaluations. A warning is
raised once, holds while its rule finds what it looks for, and is withdrawn when the rule does so no longer. Warnings
and history are part of each checkpoint, so a resumed run neither repeats a warning nor forgets one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError
from rl_training.runs.health_warnings import (
    HEALTH,
    HealthWarning,
    HealthWarningForm,
    Kind,
    read_health_warnings,
    write_health_warnings,
)
from rl_training.runs.metadata import read_metadata
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.health import rules
from rl_training.runtime.health.advice import give_advice
from rl_training.runtime.health.exploration import measure_exploration
from rl_training.runtime.health.history import Evaluation, History
from rl_training.runtime.run_utils import TrainingRun, update_metadata
from rl_training.state_checks import validate

logger = logging.getLogger(__name__)

METRIC = "health/"
"""Prefix of the metrics: 1 where a warning is raised, 0 where it is withdrawn."""

EXPLORATION, EXPLAINED, VALUE_LOSS = "exploration", "train/explained_variance", "train/value_loss"
Q_VALUES = "train/q_max", "train/q_mean"


def plays_elsewhere(config: TrainConfig) -> bool:
    """Returns whether returns of training and of evaluation can't be compared, because their environments differ."""
    own = (getattr(config.evaluation, name) for name in ("env_id", "env_kwargs", "wrappers", "reset_options"))
    return bool(config.training_wrappers or config.curriculum) or any(value is not None for value in own)


class HealthWatch(Callback):
    """Warns of training that goes bad: in the log, as metrics `health/...`, and in the run's `metadata.json`.

    Args:
        config: The settings.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config, self._history = config, History(config.total_timesteps)
        self._plays_elsewhere = plays_elsewhere(config)
        self._space: gym.Space[Any] | None = None
        self._fallen: rules.Finding | None = None
        self._judged: tuple[int, float | None] | None = None
        """The evaluations that `_fallen` is about, by their number, and the first return of training."""
        self._warnings: dict[Kind, HealthWarning] = {}
        self._recorded = False

    def on_train_start(self, state: TrainerState) -> None:
        """Brings the record of a run that continues from a checkpoint up to date."""
        assert state.policy is not None  # set before training begins
        self._space = state.policy.action_space
        self._record(state)

    def on_update_end(self, state: TrainerState) -> None:
        """Judges the metrics of an update, if they are due."""
        if state.metrics:
            self._add_metrics(state)
            self._judge(state)

    def on_eval_end(self, state: TrainerState) -> None:
        """Judges a periodic evaluation."""
        if (result := state.evaluation) is not None:
            half_width = result.ci_high - result.return_mean if result.episodes > 1 else 0.0
            self._history.add_evaluation(
                Evaluation(state.num_timesteps, result.return_mean, result.return_std, half_width)
            )
            self._judge(state)

    def on_train_end(self, state: TrainerState) -> None:
        """Tries again to write a record that could not be written."""
        self._record(state)

    def state_dict(self) -> dict[str, Any]:
        """Returns the history and the warnings."""
        return {"history": self._history.state_dict(), "warnings": write_health_warnings(self._warnings.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the history and the warnings.

        Raises:
            CheckpointError: It is no such state.
        """
        self._history.load_state_dict(state["history"])
        self._judged = None
        restored = validate("health.warnings", state["warnings"], list[HealthWarningForm])
        self._warnings = {warning.kind: warning for warning in read_health_warnings({HEALTH: restored})}

    def _add_metrics(self, state: TrainerState) -> None:
        history, metrics, step = self._history, state.metrics, state.num_timesteps
        if "rollout/episode_return_mean" in metrics:
            history.add_return(step, metrics["rollout/episode_return_mean"], int(metrics["rollout/episodes"]))
        assert self._space is not None  # training has begun
        share = measure_exploration(self._config, self._space, metrics)
        if share is not None:
            history.add_point(EXPLORATION, step, share)
        for name in (EXPLAINED, VALUE_LOSS):
            if name in metrics:
                history.add_point(name, step, metrics[name])
        if isinstance(self._config, OffPolicyConfig):
            self._add_values(self._config, metrics, step)

    def _add_values(self, config: OffPolicyConfig, metrics: Mapping[str, float], step: int) -> None:
        """Adds the Q-values, and what the newest returns and the entropy make plausible."""
        history, gamma = self._history, config.gamma
        if (length := metrics.get("rollout/episode_length_mean")) is not None:
            entropy_return = metrics.get("train/entropy_coef", 0.0) * metrics.get("train/entropy", 0.0) * length
            rewards = rules.plausible_value(metrics["rollout/episode_return_mean"], length, gamma)
            if config.normalization.reward:
                rewards = config.normalization.clip
            history.allow_value(rewards + rules.plausible_value(entropy_return, length, gamma))
        for name in Q_VALUES:
            if name in metrics:
                history.add_point(name, step, metrics[name])

    def _judge(self, state: TrainerState) -> None:
        """Raises and withdraws warnings; the metrics of those that changed are added to the metrics of the event."""
        found, step, changed = dict(self._find()), state.num_timesteps, {}
        for kind in found.keys() - self._warnings.keys():
            warning = HealthWarning(
                kind, found[kind].since, step, found[kind].seen, give_advice(kind, state.config.algo)
            )
            logger.warning("training has gone bad (%s) at step %s: %s", kind, f"{step:,}", warning)
            self._warnings[kind], changed[METRIC + kind] = warning, 1.0
        for kind in self._warnings.keys() - found.keys():
            del self._warnings[kind]
            logger.info("training is well again at step %s: %s no longer holds", f"{step:,}", kind)
            changed[METRIC + kind] = 0.0
        if changed:
            state.metrics = {**state.metrics, **changed}
            self._recorded = False
            self._record(state)

    def _find(self) -> Iterator[tuple[Kind, rules.Finding]]:
        """Yields the finding of each rule that has one."""
        history, total = self._history, self._config.total_timesteps
        evaluations, series = history.evaluations, history.series
        start = None if history.returns is None or self._plays_elsewhere else history.returns.first
        values = next((series[name] for name in Q_VALUES if name in series), [])
        found: dict[Kind, rules.Finding | None] = {
            "evaluation_fell": self._find_fallen(start),
            "exploration_collapsed": rules.find_collapsed_exploration(
                series.get(EXPLORATION, []), evaluations, start, total
            ),
            "values_worse_than_constant": rules.find_unexplained_variance(
                series.get(EXPLAINED, []), series.get(VALUE_LOSS, []), history.returns, total
            ),
            "q_values_diverged": rules.find_diverged_values(values, history.largest_value, total),
            "returns_never_differ": rules.find_equal_returns(history.returns, evaluations, total),
        }
        yield from ((kind, finding) for kind, finding in found.items() if finding is not None)

    def _find_fallen(self, start: float | None) -> rules.Finding | None:
        """Returns what the rule finds, which can't change between two evaluations."""
        judged = len(self._history.evaluations), start
        if judged != self._judged:
            total = self._config.total_timesteps
            self._fallen = rules.find_fallen_evaluation(self._history.evaluations, start, total)
            self._judged = judged
        return self._fallen

    def _record(self, state: TrainerState) -> None:
        """Writes the warnings that hold to `metadata.json`, unless it has them."""
        if self._recorded:
            return
        run, records = TrainingRun(state.run_dir, state.run_uid), write_health_warnings(self._warnings.values())
        try:
            if read_metadata(state.run_dir).get(HEALTH, []) != records:
                update_metadata(run, {HEALTH: records})
            self._recorded = True
        except UserError as error:  # a full disk, for example, must not end training
            logger.warning("the warnings about training can't be recorded yet: %s", error)
