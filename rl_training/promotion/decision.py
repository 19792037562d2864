"""The decision on a candidate: its record, id and episode seeds, and its result.

The record is a JSON artifact of the candidate's run with both result tables, every episode, the versions, hashes and
rules, and the verdict. It is written once, and read if the same question is asked again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.promotion.gate import Verdict
from rl_training.runs.evaluation_result import EvaluationResult, select_evaluation_numbers
from rl_training.seeding import env_seeds, episode_seeds
from rl_training.tracking import json_files
from rl_training.tracking.record_schemas import Decision

FOLDER = "promotions"
"""Artifact folder of a run that holds the record of each decision on its candidates."""


@dataclass(frozen=True, kw_only=True)
class PromotionResult:
    """The result of a promotion."""

    verdict: Verdict
    """The verdict of the gate."""
    forced: str | None
    """The reason for promoting the candidate whatever the verdict; None if the gate decides."""
    model: str
    """Name of the registered model."""
    version: str
    """The candidate's version."""
    alias: str | None
    """The alias of the candidate's version now: `champion`, `challenger` or None."""
    candidate: EvaluationResult
    """The candidate's episodes."""
    champion: EvaluationResult | None
    """The episodes of the champion, or of the last champion that could be loaded; None if there was none."""
    opponent_version: str | None = None
    """The version that played them: the champion, unless it could not be loaded."""
    previous_version: str | None
    """The version that was champion when the decision was made."""
    decision_id: str
    time: str
    """Time of the decision, UTC, ISO 8601; it is in the past if the same question was asked before."""
    run_id: str
    """The MLflow run that the candidate comes from; it contains the record."""
    moved: bool = False
    """Whether this promotion made the candidate champion; False if it was champion before."""

    @property
    def record(self) -> str:
        """The address of the record, which has every episode of both."""
        return f"runs:/{self.run_id}/{record_path(self.decision_id)}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON, with summaries instead of episodes."""
        return {
            "verdict": self.verdict.kind,
            "reasons": list(self.verdict.reasons),
            "numbers": self.verdict.numbers,
            "judged_by": list(self.verdict.judged_by),
            "forced": self.forced,
            "model": self.model,
            "version": self.version,
            "alias": self.alias,
            "moved": self.moved,
            "previous_version": self.previous_version,
            "opponent_version": self.opponent_version,
            "candidate": _summarize(self.candidate),
            "champion": None if self.champion is None else _summarize(self.champion),
            "decision_id": self.decision_id,
            "time": self.time,
            "run_id": self.run_id,
            "record": self.record,
        }

    def lines(self) -> list[str]:
        """Returns the result as lines of text."""
        return format_promotion(self.to_dict())


def format_promotion(promotion: Mapping[str, Any]) -> list[str]:
    """Returns the result of `PromotionResult.to_dict` as lines of text."""
    version = promotion["previous_version"]
    before = "there was no champion" if version is None else f"the champion was version {version}"
    return [
        format_promotion_line(promotion),
        *(f"  {reason}" for reason in promotion["reasons"]),
        f"decided: {promotion['time']}, when {before}",
        f"record: {promotion['record']}",
    ]


def format_promotion_line(promotion: Mapping[str, Any]) -> str:
    """Returns the verdict in the result of `PromotionResult.to_dict` as one line of text."""
    alias = f", now {promotion['alias']}" if promotion["alias"] else ""
    verdict = format_verdict(promotion["verdict"], promotion.get("forced"), promotion.get("judged_by"))
    return f"{verdict}: registered model {promotion['model']}, version {promotion['version']}{alias}"


def format_verdict(kind: str, forced: str | None, judged_by: Iterable[str] | None) -> str:
    """Returns a verdict as text, with the reason if it was overridden, and whether anything judged a promotion.

    Args:
        kind: PROMOTE, HOLD or REJECT.
        forced: The reason for promoting the candidate whatever the verdict.
        judged_by: What judged the candidate; None if that is not known.
    """
    unjudged = kind == "PROMOTE" and judged_by is not None and not list(judged_by)
    by = ", judged by nothing but being first" if unjudged else ""
    return f"{kind}{by}, forced ({forced})" if forced else f"{kind}{by}"


def describe_version(record: Mapping[str, Any], run_name: str) -> str:
    """Returns the description of a candidate's version, in Markdown, from the record of the decision on it.

    Args:
        record: The record.
        run_name: The name of the run that the candidate comes from.
    """
    verdict, candidate = read_verdict(record), record["candidate"]
    result = EvaluationResult.from_dict(candidate["evaluation"])
    rate = "" if result.success_rate is None else f", success rate {result.success_rate:.1%}"
    raw = "" if result.raw_return_mean is None else f", mean raw return {result.raw_return_mean:.6g}"
    cut = f", {result.cut} of them cut" if result.cut else ""
    return "\n".join(
        [
            f"**{format_verdict(verdict.kind, record['forced'], verdict.judged_by)}**: mean return "
            f"{result.return_mean:.6g} (95 % interval {result.ci_low:.6g} to {result.ci_high:.6g}){raw}{rate} over "
            f"{result.episodes} episodes{cut}; step {candidate['num_timesteps']:,} of run {run_name}",
            "",
            *(f"- {reason}" for reason in verdict.reasons),
            "",
            f"Decided {record['time']}; `{record_path(record['decision_id'])}` among the run's artifacts has every "
            f"episode.",
        ]
    )


def read_verdict(record: Mapping[str, Any]) -> Verdict:
    """Returns the verdict in a record."""
    verdict = record["verdict"]
    return Verdict(verdict["kind"], tuple(verdict["reasons"]), verdict["numbers"])


def record_path(decision_id: str) -> str:
    """Returns the path of a record among the artifacts of the candidate's run."""
    return f"{FOLDER}/{decision_id}.json"


def hash_question(question: Mapping[str, Any]) -> str:
    """Returns the id of the decision on a question; the same candidate, champion and rules give the same id."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]


def make_result(
    record: Mapping[str, Any], run_id: str, version: str, alias: str | None, *, moved: bool = False
) -> PromotionResult:
    """Returns the result of a decision from its record."""
    champion, lost = record["champion"], record.get("lost_champion")
    opponent = champion["version"] if champion else None
    return PromotionResult(
        verdict=read_verdict(record),
        forced=record["forced"],
        model=record["model"],
        version=version,
        alias=alias,
        candidate=EvaluationResult.from_dict(record["candidate"]["evaluation"]),
        champion=EvaluationResult.from_dict(champion["evaluation"]) if champion else None,
        opponent_version=opponent,
        previous_version=lost["version"] if lost else opponent,
        decision_id=record["decision_id"],
        time=record["time"],
        run_id=run_id,
        moved=moved,
    )


def read_decision(path: Path) -> dict[str, Any]:
    """Returns the decision in a downloaded record.

    Raises:
        TrackingError: The record is missing or damaged.
    """
    return json_files.read_record(path, Decision)


def draw_fresh_seeds(decision_id: str, episodes: int, settings: Iterable[TrainConfig]) -> list[int]:
    """Returns episode seeds for one decision that no training or evaluation with the given settings has used.

    Args:
        decision_id: Determines the seeds.
        episodes: Number of seeds.
        settings: Settings of the runs that candidate and champion come from.
    """
    used: set[int] = set()
    for config in settings:
        evaluation = config.evaluation
        used.update(env_seeds(config.seed, config.num_envs))
        used.update(episode_seeds(evaluation.seed, "evaluation", evaluation.episodes))
        used.update(episode_seeds(evaluation.seed, "held_out", evaluation.final_episodes))
    number = int.from_bytes(hashlib.sha256(decision_id.encode()).digest())
    drawn = episode_seeds(number, "held_out", episodes + len(used))
    return [seed for seed in drawn if seed not in used][:episodes]


def _summarize(result: EvaluationResult) -> dict[str, Any]:
    return select_evaluation_numbers(result.to_dict())
