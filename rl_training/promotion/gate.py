"""The gate: decides from paired episodes whether a candidate becomes champion.

The decision is a pure function of two result tables and the rules, so it can be checked by hand and by simulation. The
gate computes one-sided bounds of the candidate's mean return, of its success rate, and of the mean paired difference.
Pairing the episodes by seed removes the luck of the initial state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rl_training.config.sections import PromotionConfig
from rl_training.promotion.confidence_bounds import compute_difference_bound, compute_lower_bound
from rl_training.runs.evaluation_result import EvaluationResult

VerdictKind = Literal["PROMOTE", "HOLD", "REJECT"]


@dataclass(frozen=True)
class Verdict:
    """The decision of the gate."""

    kind: VerdictKind
    """PROMOTE: the candidate becomes champion. HOLD: there is not enough evidence that it is better. REJECT: it is
    worse than the champion or does not reach a floor."""
    reasons: tuple[str, ...]
    """Sentences with the numbers in them."""
    numbers: dict[str, float]
    """The numbers behind the reasons."""

    @property
    def judged_by(self) -> tuple[str, ...]:
        """What judged the candidate: settings of floors, and `champion` if it was compared with one."""
        return find_judges(self.numbers)


_JUDGES = {
    "floor": "promotion.floor",
    "success_floor": "promotion.success_floor",
    "worst_episode": "promotion.worst_episode",
    "difference_lower": "champion",
}
"""The number that each judge leaves in a verdict, and the judge's name."""

FLOORS = tuple(name for name in _JUDGES.values() if name != "champion")


def find_judges(numbers: Mapping[str, float]) -> tuple[str, ...]:
    """Returns what judged a candidate, from the numbers of its verdict; see `Verdict.judged_by`."""
    return tuple(name for number, name in _JUDGES.items() if number in numbers)


def decide(
    candidate: EvaluationResult, champion: EvaluationResult | None, rules: PromotionConfig, *, lost: str | None = None
) -> Verdict:
    """Decides whether the candidate becomes champion.

    Args:
        candidate: The candidate's episodes.
        champion: The episodes of the champion, or of the last champion that can be loaded, on the same seeds; None if
            there is none, so that only the floors decide.
        rules: Floors, number of episodes, confidence and margin.
        lost: A sentence that says why the champion can't be loaded, if there is a champion that can't.

    Raises:
        ValueError: Candidate and champion were played on different seeds.
    """
    if champion is not None and candidate.seeds != champion.seeds:
        raise ValueError("candidate and champion were not played on the same episode seeds: there is nothing to pair")
    numbers = {
        "episodes": float(candidate.episodes),
        "confidence": rules.confidence,
        "candidate_mean": candidate.return_mean,
        "cut_share": candidate.cut / candidate.episodes,
    }
    means = {"success_rate": candidate.success_rate, "raw_return_mean": candidate.raw_return_mean}
    numbers |= {name: mean for name, mean in means.items() if mean is not None}
    if candidate.episodes < rules.episodes:
        reason = f"{candidate.episodes} episodes were played, and the rules ask for at least {rules.episodes}"
        return Verdict("HOLD", (reason,), numbers)

    reached, reasons = _check_floors(candidate, rules, numbers)
    doubts = [*_find_missing_successes(candidate, rules), *_find_cut_episodes(candidate, rules)]
    reasons += [*([] if lost is None else [lost]), *doubts, *([] if candidate.warning is None else [candidate.warning])]
    kind: VerdictKind = "PROMOTE"
    if not reached:
        kind = "REJECT"
    elif champion is not None:
        kind, reason = _compare(candidate, champion, rules, numbers)
        reasons.append(reason)
    else:
        has_floor = bool(find_judges(numbers)) or rules.success_floor is not None  # whose rate may not be known
        kind, reason = _decide_alone(has_floor, lost)
        reasons.append(reason)
    if doubts and kind == "PROMOTE":
        kind = "HOLD"
    return Verdict(kind, tuple(reasons), numbers)


def _check_floors(
    candidate: EvaluationResult, rules: PromotionConfig, numbers: dict[str, float]
) -> tuple[bool, list[str]]:
    """Returns whether the candidate reaches all floors and the reasons; adds their numbers to `numbers`."""
    numbers["candidate_lower"] = lower = compute_lower_bound(candidate.returns, rules.confidence)
    reached, reasons = True, []
    if rules.floor is not None:
        numbers["floor"] = rules.floor
        reached = lower >= rules.floor
        reasons.append(
            f"the candidate's mean return is {candidate.return_mean:.6g}, at least {lower:.6g} with "
            f"{_format_percent(rules)} confidence, which {_format_reached(reached)} the floor of {rules.floor:.6g}"
        )
    successes = _list_successes(candidate)
    if rules.success_floor is not None and successes is not None:
        numbers["success_floor"] = rules.success_floor
        numbers["success_lower"] = lower = compute_lower_bound(successes, rules.confidence, worst=0.0)
        enough = lower >= rules.success_floor
        reasons.append(
            f"the candidate succeeded in {sum(successes):.0f} of {candidate.episodes} episodes, a rate of at least "
            f"{lower:.4g} with {_format_percent(rules)} confidence, which {_format_reached(enough)} the floor of "
            f"{rules.success_floor:.6g} for the success rate"
        )
        reached = reached and enough
    numbers["worst_return"] = worst = min(candidate.returns)
    if rules.worst_episode is not None:
        numbers["worst_episode"] = rules.worst_episode
        seed = candidate.seeds[candidate.returns.index(worst)]
        reasons.append(
            f"the candidate's worst episode, of seed {seed}, returned {worst:.6g}, which "
            f"{_format_reached(worst >= rules.worst_episode)} the floor of {rules.worst_episode:.6g} for each episode"
        )
        reached = reached and worst >= rules.worst_episode
    return reached, reasons


def _list_successes(candidate: EvaluationResult) -> list[float] | None:
    """Returns 1 or 0 for each episode, or None if an episode does not say whether it was a success."""
    given = candidate.numbers.get("is_success", (None,))
    return None if None in given else [float(bool(value)) for value in given]


def _find_missing_successes(candidate: EvaluationResult, rules: PromotionConfig) -> list[str]:
    """Returns the reason for holding a candidate whose success rate is asked for and not known."""
    if rules.success_floor is None or _list_successes(candidate) is not None:
        return []
    given = candidate.numbers.get("is_success", ())
    silent = candidate.episodes - sum(value is not None for value in given)
    return [
        f"{silent} of {candidate.episodes} episodes have no is_success in their last info, which "
        f"promotion.success_floor ({rules.success_floor:.6g}) needs of each; the environment has to report it"
    ]


def _find_cut_episodes(candidate: EvaluationResult, rules: PromotionConfig) -> list[str]:
    """Returns the reason for holding a candidate whose episodes were cut, unless the rules allow it."""
    if not candidate.cut or rules.allow_cut:
        return []
    return [
        f"{candidate.cut} of the candidate's {candidate.episodes} episodes ({candidate.cut / candidate.episodes:.0%}) "
        f"were cut at evaluation.max_episode_steps, so their returns are not full ones; raise it, or set "
        f"promotion.allow_cut"
    ]


def _decide_alone(has_floor: bool, lost: str | None) -> tuple[VerdictKind, str]:
    """Returns the verdict on a candidate that reached all floors and has no opponent, and its reason."""
    if lost is not None:
        if has_floor:
            return "PROMOTE", "no earlier champion can be loaded either, so the floors alone decide"
        return "HOLD", (
            f"no earlier champion can be loaded either, and no floor is set ({', '.join(FLOORS)}), so nothing can "
            f"judge the candidate; set a floor, or promote it with --force"
        )
    if has_floor:
        return "PROMOTE", "there is no champion yet"
    return "PROMOTE", (
        f"there is no champion yet, and no floor is set ({', '.join(FLOORS)}): the candidate was judged by nothing but "
        f"being first"
    )


def _compare(
    candidate: EvaluationResult, champion: EvaluationResult, rules: PromotionConfig, numbers: dict[str, float]
) -> tuple[VerdictKind, str]:
    """Returns the verdict on the paired differences and its reason; adds their numbers to `numbers`."""
    differences = [a - b for a, b in zip(candidate.returns, champion.returns, strict=True)]
    low = compute_difference_bound(differences, rules.confidence)
    high = -compute_difference_bound([-difference for difference in differences], rules.confidence)
    mean = math.fsum(differences) / len(differences)
    numbers |= {
        "champion_mean": champion.return_mean,
        "champion_cut_share": champion.cut / champion.episodes,
        "difference_mean": mean,
        "difference_lower": low,
        "difference_upper": high,
        "margin": rules.margin,
    }
    kind: VerdictKind = "PROMOTE" if low > rules.margin else "REJECT" if high < 0 else "HOLD"
    percent, margin = _format_percent(rules), f"the margin of {rules.margin:.6g}"
    compared = {
        "PROMOTE": f"at least {low:.6g} with {percent} confidence, which is above {margin}",
        "HOLD": f"at least {low:.6g} with {percent} confidence, which is not above {margin}: "
        f"ties and doubt keep the champion",
        "REJECT": f"at most {high:.6g} with {percent} confidence: the candidate is worse",
    }
    reason = (
        f"on the same {candidate.episodes} episodes the candidate's mean return is {candidate.return_mean:.6g} and the "
        f"champion's {champion.return_mean:.6g}; the difference is {mean:.6g}, {compared[kind]}"
    )
    return kind, reason


def _format_percent(rules: PromotionConfig) -> str:
    return f"{100 * rules.confidence:g} %"


def _format_reached(reached: bool) -> str:
    return "reaches" if reached else "does not reach"
