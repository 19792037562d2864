"""Simulates 200 years of weekly promotion decisions between policies whose true values are known.

The value of each policy falls as its task drifts away, and each week's candidate is better or worse than the champion
at random. Candidate and champion play the same episodes, whose returns have a part in common. Counted are the
candidates that were not better and were promoted: at most the share `1 - confidence` of those that were not better.

    python -m benchmarks.retraining.years_of_decisions     # writes benchmarks/results/years-of-decisions.json
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom

from benchmarks.harness import count_cpus, record
from benchmarks.promotion.gate_simulation import SHAPES
from rl_training.config.sections import PromotionConfig
from rl_training.promotion.gate import decide
from rl_training.runs.evaluation_result import EvaluationResult

YEARS, WEEKS = 200, 52
SEED = 20261130
CASES = ("normal", "exponential", "a coin")
"""Distributions of an episode's own luck, for which the gate promises its rate with 100 episodes."""
COMMON = 1.0
"""Standard deviation of the part of a return that both policies share, in deviations of the luck of each."""
DRIFT, SPREAD = 0.05, 0.3
"""Loss of the champion's value in a week, and the deviation of the candidates' values around it."""


@dataclass
class Tally:
    """Counts of the decisions of some years."""

    not_better: int = 0
    """Decisions on candidates that were not better than the champion."""
    wrongly_promoted: int = 0
    better: int = 0
    rightly_promoted: int = 0
    worst_loss: float = 0.0
    """The most that a promotion lowered the value, as a share of its interval's width."""


def simulate_year(shape: str, rng: np.random.Generator, tally: Tally, rules: PromotionConfig) -> int:
    """Decides for a year, adds to the tally, and returns the number of promotions that lowered the value."""
    champion, lowered, count = 0.0, 0, rules.episodes
    for _ in range(WEEKS):
        champion -= DRIFT
        candidate = champion + SPREAD * rng.standard_normal()
        common = COMMON * rng.standard_normal(count)
        luck = SHAPES[shape](rng, (2, count))
        verdict = decide(_make(candidate + common + luck[0]), _make(champion + common + luck[1]), rules)
        promoted, is_better = verdict.kind == "PROMOTE", candidate > champion
        tally.better += is_better
        tally.not_better += not is_better
        if promoted and is_better:
            tally.rightly_promoted += 1
        elif promoted:
            tally.wrongly_promoted, lowered = tally.wrongly_promoted + 1, lowered + 1
            width = verdict.numbers["difference_upper"] - verdict.numbers["difference_lower"]
            tally.worst_loss = max(tally.worst_loss, (champion - candidate) / width)
        if promoted:
            champion = candidate
    return lowered


def measure_case(i: int, years: int = YEARS) -> dict[str, Any]:
    """Returns the result of a case, given its place in `CASES`."""
    rules, rng, tally = PromotionConfig(), np.random.default_rng((SEED, i)), Tally()
    by_year = [simulate_year(CASES[i], rng, tally, rules) for _ in range(years)]
    allowed = int(binom.ppf(0.99, tally.not_better, 1.0 - rules.confidence))
    return {"returns": CASES[i], **vars(tally), "allowed": allowed, "most_in_a_year": max(by_year)}


def measure() -> dict[str, Any]:
    """Returns the results of all cases."""
    with ProcessPoolExecutor(count_cpus()) as pool:
        rows = list(pool.map(measure_case, range(len(CASES))))
    rules = PromotionConfig()
    return {
        "years": YEARS,
        "episodes": rules.episodes,
        "confidence": rules.confidence,
        "seed": SEED,
        "cases": rows,
        "holds": all(row["wrongly_promoted"] <= row["allowed"] and row["worst_loss"] <= 1.0 for row in rows),
    }


def _make(returns: np.ndarray) -> EvaluationResult:
    return EvaluationResult(tuple(range(len(returns))), tuple(returns.tolist()), (1,) * len(returns))


def main() -> int:
    result = measure()
    for row in result["cases"]:
        print(
            f"{row['returns']}: promoted were {row['wrongly_promoted']} of {row['not_better']:,} candidates not "
            f"better ({row['allowed']} allowed; at most {row['most_in_a_year']} in a year), and "
            f"{row['rightly_promoted']:,} of {row['better']:,} better ones; the worst loss was "
            f"{row['worst_loss']:.2f} of the interval's width"
        )
    record("years-of-decisions", result)
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
