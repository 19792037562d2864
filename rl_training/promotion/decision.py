"""A decision on a candidate: its record, its id, its episode seeds, and what it tells people.

The record is a JSON artifact of the candidate's run: both result tables with every episode, versions, hashes, rules
and verdict. It is written once, and read again where the same is asked again.
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
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.seeding import env_seeds, episode_seeds
from rl_training.tracking import json_files
from rl_training.tracking.record_schemas import Decision

FOLDER = "promotions"
"""Artifact folder of a run that holds the record of each decision on its candidates."""


@dataclass(frozen=True, kw_only=True)
class PromotionResult:
    """What a promotion came to."""

    verdict: Verdict
    """What the gate found."""
    forced: str | None
    """Why the candidate becomes champion whatever the gate found; None where the gate alone decides."""
    model: str
    """Name of the registered model."""
    version: str
    """The candidate's version."""
    alias: str | None
    """What the candidate's version is now: `champion`, `challenger`, or neither."""
    candidate: EvaluationResult
    """Its episodes."""
    champion: EvaluationResult | None
    """The episodes of who was champion; None where there was none."""
    previous_version: str | None
    """The version that was champion when it was decided."""
    decision_id: str
    time: str
    """When it was decided, UTC, ISO 8601: earlier, where the same had been asked before."""
    run_id: str
    """The MLflow run that the candidate comes from, which has the record."""
    moved: bool = False
    """Whether it was made champion now; False where it was champion before, and where it is not."""

    @property
    def record(self) -> str:
        """Where the record is, with every episode of both."""
        return f"runs:/{self.run_id}/{record_path(self.decision_id)}"

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON; of the episodes the numbers that sum them up."""
        return {
            "verdict": self.verdict.kind,
            "reasons": list(self.verdict.reasons),
            "numbers": self.verdict.numbers,
            "forced": self.forced,
            "model": self.model,
            "version": self.version,
            "alias": self.alias,
            "moved": self.moved,
            "previous_version": self.previous_version,
            "candidate": _summed_up(self.candidate),
            "champion": None if self.champion is None else _summed_up(self.champion),
            "decision_id": self.decision_id,
            "time": self.time,
            "run_id": self.run_id,
            "record": self.record,
        }

    def lines(self) -> list[str]:
        """Returns it for people."""
        return format_promotion(self.to_dict())


def format_promotion(promotion: Mapping[str, Any]) -> list[str]:
    """Returns a decision, of a result as JSON, for people."""
    before = "nobody" if promotion["previous_version"] is None else f"version {promotion['previous_version']}"
    return [
        format_promotion_line(promotion),
        *(f"  {reason}" for reason in promotion["reasons"]),
        f"decided: {promotion['time']}, when the champion was {before}",
        f"record: {promotion['record']}",
    ]


def format_promotion_line(promotion: Mapping[str, Any]) -> str:
    """Returns what was decided, of a result as JSON."""
    forced = f", forced ({promotion['forced']})" if promotion.get("forced") else ""
    alias = f", now {promotion['alias']}" if promotion["alias"] else ""
    return (
        f"{promotion['verdict']}{forced}: registered model {promotion['model']}, version {promotion['version']}{alias}"
    )


def record_path(decision_id: str) -> str:
    """Returns the record's name among the artifacts of the candidate's run."""
    return f"{FOLDER}/{decision_id}.json"


def decision_id(about: Mapping[str, Any]) -> str:
    """Returns the id of the decision about a candidate, a champion and rules: the same for the same question."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]


def make_result(
    record: Mapping[str, Any], run_id: str, version: str, alias: str | None, *, moved: bool = False
) -> PromotionResult:
    """Returns the result of a decision.

    Args:
        record: What was decided.
        run_id: The run that has the record.
        version: The candidate's version now.
        alias: What that version is now.
        moved: Whether it was made champion now.
    """
    verdict, champion = record["verdict"], record["champion"]
    return PromotionResult(
        verdict=Verdict(verdict["kind"], tuple(verdict["reasons"]), verdict["numbers"]),
        forced=record["forced"],
        model=record["model"],
        version=version,
        alias=alias,
        candidate=EvaluationResult.from_dict(record["candidate"]["evaluation"]),
        champion=EvaluationResult.from_dict(champion["evaluation"]) if champion else None,
        previous_version=champion["version"] if champion else None,
        decision_id=record["decision_id"],
        time=record["time"],
        run_id=run_id,
        moved=moved,
    )


def read_decision(path: Path) -> dict[str, Any]:
    """Returns a record that was downloaded.

    Raises:
        TrackingError: It is damaged.
    """
    return json_files.read_record(path, Decision)


def draw_fresh_seeds(decision_id: str, episodes: int, settings: Iterable[TrainConfig]) -> list[int]:
    """Returns episode seeds that belong to one decision, and that no training or evaluation of these settings used.

    Args:
        decision_id: The seeds are a function of it.
        episodes: How many.
        settings: Of the runs that candidate and champion come from.
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


def _summed_up(result: EvaluationResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_dict().items() if not isinstance(value, list)}
