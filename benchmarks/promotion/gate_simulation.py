"""How often the gate errs: decisions between simulated policies whose true means are known.

Two policies' episode returns are drawn independently, which is the gate's hardest case: on shared seeds they would go
together, and their difference would spread less. Of equal policies the share promoted is the rate of false promotions;
of a candidate better by half the deviation of its returns it is the power; without a champion, it is the share of
candidates that pass a floor at which their true mean lies. The rule that the higher mean wins stands beside.

    python -m benchmarks.promotion.gate_simulation                                # benchmarks/results/gate.json
    python -m benchmarks.promotion.gate_simulation --table docs/promotion.md  # writes the page's table from the JSON
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from benchmarks.provenance import RESULTS, provenance, write_json
from rl_training.config.settings import PromotionConfig
from rl_training.promotion.gate import decide
from rl_training.runtime.evaluation import EvaluationResult

NAME = "gate"
SEED = 20260214
DECISIONS = 2_000
BETTER = 0.5
"""How much better the better candidate is, in deviations of one policy's returns."""
POWER = 0.8
"""The share of better candidates that must be promoted."""
_BLOCK = re.compile(r"(<!-- gate -->\n).*?(<!-- /gate -->)", re.DOTALL)

Returns = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Returns]


def failures(rate: float) -> Draw:
    """Returns what draws 0 at a rate and 1 else, shifted and scaled to mean 0 and deviation 1."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Returns:
        return ((rng.random(shape) >= rate) - (1 - rate)) / np.sqrt(rate * (1 - rate))

    return draw


def lognormal(rng: np.random.Generator, shape: tuple[int, int]) -> Returns:
    """Draws from a lognormal distribution with log-deviation 1, shifted and scaled to mean 0 and deviation 1."""
    return (rng.lognormal(0.0, 1.0, shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)


SHAPES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(0.0, 1.0, shape),
    "exponential": lambda rng, shape: rng.exponential(1.0, shape) - 1.0,
    "exponential, downwards": lambda rng, shape: 1.0 - rng.exponential(1.0, shape),
    "lognormal": lognormal,
    "a coin": failures(0.5),
    "5 % failures": failures(0.05),
    "1 % failures": failures(0.01),
    "always the same": lambda rng, shape: np.zeros(shape),
}
"""Episode returns, each with mean 0, and deviation 1 where they vary."""


@dataclass(frozen=True)
class Case:
    """Whose returns are drawn from what."""

    candidate: str
    champion: str


EQUAL = tuple(Case(name, name) for name in list(SHAPES)[:6])
"""Equal policies: what the gate must hold."""

UNEQUAL = (
    Case("exponential, downwards", "normal"),
    Case("exponential, downwards", "always the same"),
    Case("5 % failures", "always the same"),
    Case("1 % failures", "always the same"),
)
"""Policies of equal mean and another kind of luck: what it can't wholly hold."""


def simulate(case: Case, seed: Sequence[int], decisions: int = DECISIONS) -> dict[str, Any]:
    """Returns how many candidates are promoted: equal ones, better ones, and ones at the floor.

    Args:
        case: The two policies.
        seed: Of the returns.
        decisions: How many of each kind.
    """
    rules, at_floor = PromotionConfig(), PromotionConfig(floor=0.0)
    rng, shape = np.random.default_rng(seed), (decisions, rules.episodes)
    candidates, champions = SHAPES[case.candidate](rng, shape), SHAPES[case.champion](rng, shape)
    better = candidates + BETTER
    return {
        "candidate": case.candidate,
        "champion": case.champion,
        "equal_promoted": _promoted(candidates, champions, rules),
        "better_promoted": _promoted(better, champions, rules),
        "at_floor_promoted": _promoted(candidates, None, at_floor),
        "equal_promoted_by_mean": int((candidates.mean(1) > champions.mean(1)).sum()),
        "better_promoted_by_mean": int((better.mean(1) > champions.mean(1)).sum()),
    }


def _promoted(candidates: Returns, champions: Returns | None, rules: PromotionConfig) -> int:
    opponents = [None] * len(candidates) if champions is None else [_played(row) for row in champions]
    pairs = zip(map(_played, candidates), opponents, strict=True)
    return sum(decide(candidate, champion, rules).kind == "PROMOTE" for candidate, champion in pairs)


def _played(returns: Returns) -> EvaluationResult:
    count = len(returns)
    return EvaluationResult(tuple(range(count)), tuple(returns.tolist()), (1,) * count)


def allowed(decisions: int) -> int:
    """Returns the most false promotions that a true rate of 5 % allows at the 99 % level."""
    return int(binom.ppf(0.99, decisions, 0.05))


def measure() -> dict[str, Any]:
    """Returns what `main` writes down."""
    results = [simulate(case, (SEED, i)) for i, case in enumerate((*EQUAL, *UNEQUAL))]
    equal = results[: len(EQUAL)]
    return {
        "decisions": DECISIONS,
        "episodes": PromotionConfig().episodes,
        "seed": SEED,
        "allowed_at_99_percent": allowed(DECISIONS),
        "most_false_promotions": max(result["equal_promoted"] for result in equal),
        "least_power": min(result["better_promoted"] for result in equal) / DECISIONS,
        "equal_policies": equal,
        "equal_means_alone": results[len(EQUAL) :],
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether the gate keeps what it promises of equal policies."""
    within = result["most_false_promotions"] <= result["allowed_at_99_percent"]
    return bool(within and result["least_power"] >= POWER)


def updated(page: str, result: dict[str, Any]) -> str:
    """Returns a Markdown page with the table between its markers written anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{table(result)}\n\n{match[2]}", page)


def table(result: dict[str, Any]) -> str:
    """Returns the results as a Markdown table."""
    decisions = result["decisions"]
    lines = [
        f"| candidate's returns | champion's returns | equal: promoted of {decisions:,} | by the higher mean | "
        f"better by {BETTER} s: promoted | by the higher mean | mean at the floor: passed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (*result["equal_policies"], *result["equal_means_alone"]):
        counts = f"{row['equal_promoted']:,} | {row['equal_promoted_by_mean']:,}"
        shares = [
            row[f"{name}"] / decisions for name in ("better_promoted", "better_promoted_by_mean", "at_floor_promoted")
        ]
        percents = " | ".join(f"{100 * share:.1f} %" for share in shares)
        lines.append(f"| {row['candidate']} | {row['champion']} | {counts} | {percents} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate decisions of the gate between policies of known means.")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the table into this page from the JSON")
    page = parser.parse_args().table
    if page is not None:
        result = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
        page.write_text(updated(page.read_text(encoding="utf-8"), result), encoding="utf-8")
        return 0
    result = measure()
    path = write_json(NAME, {"benchmark": NAME, **result, **provenance()})
    print(table(result))
    print(f"written: {path}")
    return 0 if holds(result) else 1


if __name__ == "__main__":
    raise SystemExit(main())
