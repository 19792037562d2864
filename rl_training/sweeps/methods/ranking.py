"""Ranks trials that are compared while they train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.plan import Outcome, Round, list_outcomes

MAY_CONTINUE = ("paused", "complete")
"""The states of a trial that may still win: it is paused, or has ended before the others."""


class TrialHistory:
    """What came of the trials so far, by their number and the step at which they were stopped.

    Args:
        sweep: The sweep.
        rounds: The complete rounds.
    """

    def __init__(self, sweep: Sweep, rounds: Sequence[Round]) -> None:
        self._sign = 1.0 if sweep.settings.direction == "maximize" else -1.0
        self._outcomes: dict[int, dict[int, Outcome]] = {}
        for step, outcome in list_outcomes(rounds, "search"):
            self._outcomes.setdefault(step.trial, {})[step.until] = outcome

    def find(self, trials: Iterable[int], until: int) -> dict[int, Outcome]:
        """Returns the outcomes of trials at a step, without those that have yet to train to there.

        A trial that completed earlier, because it reached `evaluation.stop_at_return`, keeps that outcome.
        """
        found = ((trial, self._find(trial, until)) for trial in trials)
        return {trial: outcome for trial, outcome in found if outcome is not None}

    def _find(self, trial: int, until: int) -> Outcome | None:
        outcomes = self._outcomes.get(trial, {})
        early = (outcome for step, outcome in outcomes.items() if step < until and outcome.state == "complete")
        return outcomes.get(until) or next(early, None)

    def rank(self, outcomes: Mapping[int, Outcome]) -> list[int]:
        """Returns the numbers of trials from best to worst; failed and pruned trials rank last, ties by number."""

        def order(trial: int) -> tuple[bool, float, int]:
            outcome = outcomes[trial]
            lost = outcome.state not in MAY_CONTINUE or outcome.score is None
            return lost, 0.0 if outcome.score is None or lost else -self._sign * outcome.score, trial

        return sorted(outcomes, key=order)
