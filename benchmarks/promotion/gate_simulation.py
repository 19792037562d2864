"""Measures how often the promotion gate decides wrongly between simulated policies whose true means are known.

The episode returns of the two policies are drawn independently, which is the hardest case for the gate: with shared
seeds, the returns would be correlated, and their difference would vary less. For equal policies, the share of
promotions is the false positive rate. For a candidate that is better by half the standard deviation of its returns, it
is the power. Without a champion, it is the share of candidates that pass a floor equal to their true mean. The results
are compared with the rule that the higher mean wins. Each is measured for several numbers of episodes.

The watch over champions is simulated as well: policies whose true mean is at the floor are offered until they pass it,
and are then evaluated again, unchanged.

    python -m benchmarks.promotion.gate_simulation                            # writes benchmarks/results/gate.json
    python -m benchmarks.promotion.gate_simulation --table docs/promotion.md  # updates the page's tables from the JSON
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from benchmarks.harness import RESULTS, count_cpus, record, replace_block, update_file
from rl_training.config.sections import PromotionConfig
from rl_training.promotion.gate import decide
from rl_training.promotion.performance_drop import find_drop
from rl_training.runs.evaluation_result import EvaluationResult

NAME = "gate"
SEED = 20260214
DECISIONS = 500
EPISODES = (20, 50, 100)
PROMOTED = 200
"""Number of promoted policies whose later evaluation is simulated."""
BETTER = 0.5
"""How much better the better candidate is, in standard deviations of one policy's returns."""
POWER = 0.8
"""Least share of better candidates that must be promoted."""

Returns = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Returns]


def draw_failures(rate: float) -> Draw:
    """Returns a function that draws 0 at this rate and otherwise 1, scaled to mean 0 and standard deviation 1."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Returns:
        return ((rng.random(shape) >= rate) - (1 - rate)) / np.sqrt(rate * (1 - rate))

    return draw


def draw_lognormal(rng: np.random.Generator, shape: tuple[int, int]) -> Returns:
    """Draws from a lognormal distribution with sigma 1, scaled to mean 0 and standard deviation 1."""
    return (rng.lognormal(0.0, 1.0, shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)


SHAPES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(0.0, 1.0, shape),
    "exponential": lambda rng, shape: rng.exponential(1.0, shape) - 1.0,
    "exponential, downwards": lambda rng, shape: 1.0 - rng.exponential(1.0, shape),
    "lognormal": draw_lognormal,
    "lognormal, downwards": lambda rng, shape: -draw_lognormal(rng, shape),
    "a coin": draw_failures(0.5),
    "5 % failures": draw_failures(0.05),
    "1 % failures": draw_failures(0.01),
    "always the same": lambda rng, shape: np.zeros(shape),
}
"""Distributions of episode returns, each with mean 0 and, unless constant, standard deviation 1."""


@dataclass(frozen=True)
class Case:
    """The distributions of the returns of both policies, by name."""

    candidate: str
    champion: str


EQUAL = tuple(Case(name, name) for name in list(SHAPES)[:7])
"""Equal policies, for which the gate must keep its error rates."""

UNEQUAL = (
    Case("exponential, downwards", "normal"),
    Case("exponential, downwards", "always the same"),
    Case("lognormal, downwards", "always the same"),
    Case("5 % failures", "always the same"),
    Case("1 % failures", "always the same"),
)
"""Policies with equal means and different distributions, for which the gate can't fully keep its error rates."""

CHECKED = (Case("a coin", "a coin"), 20)
"""The case whose first decisions a test repeats, to see that the results are those of this gate."""

WATCHED = ("normal", "exponential", "exponential, downwards", "a coin", "5 % failures")
"""Distributions of the returns of watched champions."""


def simulate(case: Case, episodes: int, seed: Sequence[int], decisions: int = DECISIONS) -> dict[str, Any]:
    """Returns how many candidates are promoted: candidates that are equal, better, and at the floor.

    Args:
        case: The two policies.
        episodes: Number of episodes of each decision.
        seed: Seed of the returns.
        decisions: Number of decisions of each kind.
    """
    rules, at_floor = PromotionConfig(episodes=episodes), PromotionConfig(episodes=episodes, floor=0.0)
    rng, shape = np.random.default_rng(seed), (decisions, episodes)
    candidates, champions = SHAPES[case.candidate](rng, shape), SHAPES[case.champion](rng, shape)
    better = candidates + BETTER
    return {
        "candidate": case.candidate,
        "champion": case.champion,
        "episodes": episodes,
        "equal_promoted": _count_promoted(candidates, champions, rules),
        "better_promoted": _count_promoted(better, champions, rules),
        "at_floor_promoted": _count_promoted(candidates, None, at_floor),
        "equal_promoted_by_mean": int((candidates.mean(1) > champions.mean(1)).sum()),
        "better_promoted_by_mean": int((better.mean(1) > champions.mean(1)).sum()),
    }


def simulate_watch(name: str, episodes: int, seed: Sequence[int], promoted: int = PROMOTED) -> dict[str, Any]:
    """Returns how many champions are said to have dropped: unchanged ones, and ones that are worse by a deviation.

    Args:
        name: The distribution of the returns; its mean is the floor.
        episodes: Number of episodes of the promotion and of the evaluation.
        seed: Seed of the returns.
        promoted: Number of champions that passed the floor, and of champions that no floor has selected.
    """
    rng, draw = np.random.default_rng(seed), SHAPES[name]
    free, at_floor = PromotionConfig(episodes=episodes), PromotionConfig(episodes=episodes, floor=0.0)
    passed: list[EvaluationResult] = []
    while len(passed) < promoted:
        (returns,) = draw(rng, (1, episodes))
        played = _make_evaluation(returns)
        if played.return_mean >= 0.0 and decide(played, None, at_floor).kind == "PROMOTE":
            passed.append(played)
    any_, now = ([_make_evaluation(row) for row in draw(rng, (promoted, episodes))] for _ in range(2))
    worse = [_make_evaluation(row - 1.0) for row in draw(rng, (promoted, episodes))]
    return {
        "returns": name,
        "episodes": episodes,
        "at_floor_dropped": sum(find_drop(*pair, at_floor).dropped for pair in zip(now, passed, strict=True)),
        "any_dropped": sum(find_drop(*pair, free).dropped for pair in zip(now, any_, strict=True)),
        "worse_dropped": sum(find_drop(*pair, free).dropped for pair in zip(worse, any_, strict=True)),
    }


def _count_promoted(candidates: Returns, champions: Returns | None, rules: PromotionConfig) -> int:
    opponents = [None] * len(candidates) if champions is None else [_make_evaluation(row) for row in champions]
    pairs = zip(map(_make_evaluation, candidates), opponents, strict=True)
    return sum(decide(candidate, champion, rules).kind == "PROMOTE" for candidate, champion in pairs)


def _make_evaluation(returns: Returns) -> EvaluationResult:
    count = len(returns)
    return EvaluationResult(tuple(range(count)), tuple(returns.tolist()), (1,) * count)


def count_allowed(decisions: int) -> int:
    """Returns the largest number of false promotions that is compatible with a rate of 5% at the 99% level."""
    return int(binom.ppf(0.99, decisions, 0.05))


def measure() -> dict[str, Any]:
    """Returns the results of all cases."""
    cases = list(product((*EQUAL, *UNEQUAL), EPISODES))
    watched = list(product(WATCHED, EPISODES))
    with ProcessPoolExecutor(count_cpus()) as pool:
        later = [pool.submit(simulate_watch, *case, (SEED, 1, i)) for i, case in enumerate(watched)]
        results = list(pool.map(simulate, *zip(*cases, strict=True), [(SEED, i) for i in range(len(cases))]))
        watches = [future.result() for future in later]
    equal = results[: len(EQUAL) * len(EPISODES)]
    return {
        "decisions": DECISIONS,
        "promoted": PROMOTED,
        "seed": SEED,
        "allowed_at_99_percent": count_allowed(DECISIONS),
        "most_false_promotions": max(result["equal_promoted"] for result in equal),
        "least_power": min(row["better_promoted"] for row in equal if row["episodes"] == EPISODES[-1]) / DECISIONS,
        "first_decisions": simulate(*CHECKED, (SEED,), decisions=50),
        "equal_policies": equal,
        "equal_means_alone": results[len(equal) :],
        "watched": watches,
    }


def holds(result: dict[str, Any]) -> bool:
    """Tells whether the gate keeps its promised error rates for equal policies."""
    within = result["most_false_promotions"] <= result["allowed_at_99_percent"]
    return bool(within and result["least_power"] >= POWER)


def update_page(page: str, result: dict[str, Any]) -> str:
    """Returns the page with its tables updated."""
    return replace_block(replace_block(page, "gate", format_table(result)), "watch", format_watch_table(result))


def format_table(result: dict[str, Any]) -> str:
    """Returns the results of the gate as a Markdown table, whose cells have a rate for each number of episodes."""
    lines = [
        f"| candidate's returns | champion's returns | equal: promoted | better by {BETTER} SD: promoted | "
        f"mean at the floor: passed |",
        "|---|---|---|---|---|",
    ]
    rows = [*result["equal_policies"], *result["equal_means_alone"]]
    for same in _group(rows):
        names = ("equal_promoted", "better_promoted", "at_floor_promoted")
        rates = " | ".join(_format_rates(same, name, result["decisions"]) for name in names)
        lines.append(f"| {same[0]['candidate']} | {same[0]['champion']} | {rates} |")
    return "\n".join(lines)


def format_watch_table(result: dict[str, Any]) -> str:
    """Returns the results of the watch as a Markdown table, whose cells have a rate for each number of episodes."""
    lines = [
        "| champion's returns | unchanged, mean at the floor that it passed | unchanged, without a floor | "
        "worse by 1 SD: dropped |",
        "|---|---|---|---|",
    ]
    for same in _group(result["watched"]):
        names = ("at_floor_dropped", "any_dropped", "worse_dropped")
        rates = " | ".join(_format_rates(same, name, result["promoted"]) for name in names)
        lines.append(f"| {same[0]['returns']} | {rates} |")
    return "\n".join(lines)


def _group(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Returns the rows of each case together, one for each number of episodes."""
    return [rows[i : i + len(EPISODES)] for i in range(0, len(rows), len(EPISODES))]


def _format_rates(rows: list[dict[str, Any]], name: str, count: int) -> str:
    return " / ".join(f"{100 * row[name] / count:.1f}" for row in rows) + " %"


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate the gate's decisions on policies with known means.")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="update the tables of this page from the JSON")
    page = parser.parse_args().table
    if page is not None:
        result = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
        update_file(page, lambda text: update_page(text, result))
        return 0
    result = measure()
    print(f"{format_table(result)}\n\n{format_watch_table(result)}")
    record(NAME, result)
    return 0 if holds(result) else 1


if __name__ == "__main__":
    raise SystemExit(main())
