"""Population-based training: members that fall behind are replaced by forks of better ones with changed settings.

Jaderberg et al. 2017, "Population Based Training of Neural Networks": truncation selection, and exploration by
perturbing or resampling each setting (section 4.1). All members train to the same step, pause, and are compared, so the
result does not depend on which one is quicker. The forks of a generation continue checkpoints at which members paused;
these are kept until the generation is complete (`keep_pause`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.errors import ConfigError
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.exploring import explore
from rl_training.sweeps.methods.random_search import draw_point
from rl_training.sweeps.methods.ranking import MAY_CONTINUE, TrialHistory
from rl_training.sweeps.plan import Fork, Outcome, Round, Step
from rl_training.sweeps.space import Point

GENERATIONS = 10
"""The number of generations without `method.interval`."""

MOST_GENERATIONS = 10_000


@dataclass(frozen=True)
class Member:
    """A member of the population in one generation."""

    params: Point
    fork: Fork | None = None
    """The checkpoint that it continues in place of its own."""


class PopulationMethod:
    """Trains the members from generation to generation."""

    def __init__(self, sweep: Sweep) -> None:
        """Computes the generations.

        Raises:
            ConfigError: There are more than `MOST_GENERATIONS`.
        """
        self._sweep = sweep
        self._ends = compute_generations(sweep)

    def plan(self, rounds: Sequence[Round]) -> list[Step]:
        """Returns the steps of the next round.

        Raises:
            ConfigError: The settings refuse every point that was drawn for a trial.
        """
        settings, history = self._sweep.settings, TrialHistory(self._sweep, rounds)
        members = {trial: Member(draw_point(self._sweep, trial)) for trial in range(settings.trials)}
        for generation, until in enumerate(self._ends, start=1):
            known = history.find(members, until)
            if due := [trial for trial in members if trial not in known]:
                return [self._make_step(trial, members[trial], until) for trial in due[: settings.parallel]]
            if not any(outcome.state in MAY_CONTINUE for outcome in known.values()):
                return []
            members = self._select(generation, members, known, history.rank(known))
        return []

    def _make_step(self, trial: int, member: Member, until: int) -> Step:
        return Step(trial, member.params, self._sweep.seeds, until=until, fork=member.fork)

    def _select(
        self, generation: int, members: Mapping[int, Member], known: Mapping[int, Outcome], ranked: Sequence[int]
    ) -> dict[int, Member]:
        """Returns the members of the next generation: those that stay, and forks in place of the worst and failed ones.

        Args:
            generation: The number of the generation that is complete, from 1.
            members: Its members.
            known: Their outcomes.
            ranked: Their numbers from best to worst.
        """
        settings = self._sweep.settings
        rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(generation,)))
        count = max(1, int(settings.method.quantile * len(ranked)))
        healthy = [trial for trial in ranked if known[trial].state in MAY_CONTINUE]
        best, worst = healthy[:count], ranked[-count:]
        following: dict[int, Member] = {}
        for trial, member in members.items():
            behind = trial in worst and trial not in best and known[trial].state == "paused"
            if trial in healthy and not behind:
                following[trial] = Member(member.params)
                continue
            origin = best[rng.integers(len(best))]
            params = explore(self._sweep, members[origin].params, rng)
            following[trial] = Member(params, Fork(origin, known[origin].runs[0].num_timesteps))
        return following


def compute_generations(sweep: Sweep) -> tuple[int, ...]:
    """Returns the environment steps at which members are compared, and the total, at which they end.

    The interval is rounded up to a multiple of `evaluation.every`, so that each comparison has its own evaluation.

    Raises:
        ConfigError: There are more than `MOST_GENERATIONS`.
    """
    total, every = sweep.base.total_timesteps, sweep.base.evaluation.every
    wanted = sweep.settings.method.interval or -(-total // GENERATIONS)
    interval = -(-wanted // every) * every
    if (count := -(-total // interval)) > MOST_GENERATIONS:
        raise ConfigError(
            f"method.interval: got {interval:,}, which makes {count:,} generations of {total:,} steps; raise it, "
            f"because {MOST_GENERATIONS:,} are the most"
        )
    return (*range(interval, total, interval), total)
