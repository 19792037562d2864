"""Computes how much each searched setting decides whether a trial is among the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rl_training.sweeps.methods.optuna_values import make_optuna_trial, silence_optuna
from rl_training.sweeps.space import Dimension
from rl_training.sweeps.sweep_config import Direction
from rl_training.sweeps.trials import Trial

if TYPE_CHECKING:
    from rl_training.sweeps.loading import Sweep

LEAST_TRIALS = 8
"""The number of trials with a score below which no importance is computed."""

LEAST_BEST = 5
"""The number of trials that count as the best, at least; the estimate is unstable with fewer."""

NO_OPTUNA = "The importance of settings needs Optuna: pip install 'rl-training[optuna]'."


@dataclass(frozen=True)
class Importance:
    """The importance of the settings, or why it is not known."""

    explanation: str
    """What the shares mean, or why there are none, as a sentence."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """The share of each setting by dotted key, the largest first; the sum is 1."""
    trials: int = 0
    """The number of trials that were compared."""
    num_timesteps: int | None = None
    """The step at which they were compared; None for the end of their training."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


def compute_importance(sweep: Sweep, trials: Sequence[Trial]) -> Importance:
    """Returns the importance of each setting of the space, by PED-ANOVA.

    The method (arXiv:2304.10255; arXiv:2601.20800 for settings that are not set in each trial) compares the values of
    the best trials with those of all trials. It draws no random numbers.

    Trials that were stopped early compare with others only at a step that both have reached. If less than half of
    the trials are complete, all of those are compared that have reached the last step that half of them have.

    Args:
        sweep: The sweep.
        trials: The trials of the search.
    """
    if sweep.settings.method.name == "population":
        return Importance("The members of a population change their settings while they train, so none is compared.")
    scores, step = _find_scores(trials)
    if len(scores) < LEAST_TRIALS:
        return Importance(
            f"{len(scores)} trials have a score to compare, and the importance of settings needs {LEAST_TRIALS}."
        )
    if len(set(scores.values())) == 1:
        return Importance("All trials have the same score, so no setting decides it.")
    try:
        with silence_optuna():
            shares = _compute_shares(sweep.space.dimensions, trials, scores, sweep.settings.direction)
    except ImportError:
        return Importance(NO_OPTUNA)
    where = "at the end" if step is None else f"at step {step:,}"
    best = math.ceil(_best_share(len(scores)) * len(scores))
    explanation = f"How much each setting decides whether a trial is among the best {best} of {len(scores)} {where}."
    return Importance(explanation, shares, len(scores), step)


def _find_scores(trials: Sequence[Trial]) -> tuple[dict[int, float], int | None]:
    """Returns comparable scores by the trials' numbers, and the step at which they compare; None for the end."""
    scored = [trial for trial in trials if trial.score is not None and all(run.evaluations for run in trial.runs)]
    complete = {t.number: t.score for t in scored if t.state == "complete" and t.score is not None}
    if 2 * len(complete) >= len(scored):
        return complete, None
    reached = {trial.number: min(max(run.evaluations) for run in trial.runs) for trial in scored}
    step = sorted(reached.values(), reverse=True)[(len(reached) - 1) // 2]
    return {trial.number: _score_at(trial, step) for trial in scored if reached[trial.number] >= step}, step


def _score_at(trial: Trial, step: int) -> float:
    """Returns the mean over the trial's runs of the newest evaluation that is not later than a step."""
    values = [run.evaluations[max(s for s in run.evaluations if s <= step)] for run in trial.runs]
    return math.fsum(values) / len(values)


def _compute_shares(
    dimensions: Sequence[Dimension], trials: Sequence[Trial], scores: Mapping[int, float], direction: Direction
) -> dict[str, float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    study = optuna.create_study(direction=direction)
    for trial in trials:
        if trial.number in scores:
            study.add_trial(make_optuna_trial(dimensions, trial.params, value=scores[trial.number]))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_best_share(len(scores)))
    found = get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in sorted(found.items(), key=lambda item: (-item[1], item[0]))}


def _best_share(trials: int) -> float:
    """Returns the share of trials that count as the best: a tenth, or as many as give a stable estimate."""
    return min(0.5, max(0.1, LEAST_BEST / trials))
