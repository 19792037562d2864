"""Promotion: a run's checkpoint becomes a registered version, and champion if the gate finds the evidence.

Candidate and champion play the same fresh episodes now, under a lock that flows and the command line share. Whatever is
decided is written down before the alias `champion` moves, which is the last write; so a decision that was cut off in
between is finished, not made anew, when the same is asked again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.stopping import StopFlag
from rl_training.runtime.workflows import load_policy, resolve_local_checkpoint
from rl_training.seeding import env_seeds, episode_seeds
from rl_training.tracking.gate import Verdict, decide
from rl_training.tracking.promotion_lock import PromotionLock, promotion_lock
from rl_training.tracking.registry import CHALLENGER, CHAMPION, champion_of, get_or_register, model_name
from rl_training.tracking.sources import fresh_directory, policy_of_version, reaching
from rl_training.tracking.store import connect, resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

FOLDER = "promotions"
"""Artifact folder of a run that holds the record of each decision on its candidates."""

DECISION_TAG = "decision."
"""Prefix of a version's tag for each decision on it; the value is the verdict."""


@dataclass(frozen=True, kw_only=True)
class PromotionResult:
    """What a promotion came to."""

    verdict: Verdict
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


def promote(
    checkpoint: str | Path | Checkpoint,
    config: TrainConfig,
    *,
    run_id: str,
    tracking_uri: str | None = None,
    decision_id: str | None = None,
    stop: StopFlag | None = None,
) -> PromotionResult:
    """Registers a checkpoint and makes it champion if the evidence passes the gate.

    Asking the same again, about the same candidate, champion and rules, plays nothing: the decision stands.

    Args:
        checkpoint: The candidate: a checkpoint or its directory; a run's directory stands for its newest good one.
        config: The settings: the environment to play in, and the gate's rules.
        run_id: The MLflow run that the candidate comes from.
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded one.
        decision_id: By default made of candidate, champion and rules.
        stop: Polled between steps of the episodes.

    Raises:
        CheckpointError: The candidate or the champion's copy is damaged.
        TrackingError: The registry can't be reached, or another promotion did not end.
        UserError: MLflow knows no such run, or the champion plays another task.
        StopTraining: `stop` was set.
    """
    checkpoint, model = resolve_local_checkpoint(checkpoint), model_name(config)
    uri = resolve_tracking_uri(tracking_uri)
    with reaching(uri, f"promotion of {checkpoint.path.name} of run {run_id}"):
        client = connect(uri)
        with promotion_lock(client, uri, model) as lock:
            return _Promotion(client, uri, model, checkpoint, config, run_id, stop).run(lock, decision_id)


class _Promotion:
    """One promotion, under its lock."""

    def __init__(
        self,
        client: MlflowClient,
        uri: str,
        model: str,
        checkpoint: Checkpoint,
        config: TrainConfig,
        run_id: str,
        stop: StopFlag | None,
    ) -> None:
        self.client, self.uri, self.model = client, uri, model
        self.checkpoint, self.config, self.run_id, self.stop = checkpoint, config, run_id, stop

    def run(self, lock: PromotionLock, decision_id: str | None) -> PromotionResult:
        version = get_or_register(self.client, self.uri, self.model, self.checkpoint, self.config, self.run_id)
        champion = champion_of(self.client, self.model)
        if (
            champion is not None
            and str(champion.version) == str(version.version)
            and "gate.decision_id" in version.tags
        ):
            return self._result(version, self._read(version.tags["gate.decision_id"]), CHAMPION)
        decision_id = decision_id or self._decision_id(version, champion)
        if DECISION_TAG + decision_id in version.tags:
            record = self._read(decision_id)
        else:
            record = self._decide(version, champion, decision_id)
            self._write(version, record)
        return self._result(version, record, self._set_alias(version, record, lock))

    def _decision_id(self, version: ModelVersion, champion: ModelVersion | None) -> str:
        parts = {
            "model": self.model,
            "candidate": [str(version.version), self.run_id, self.checkpoint.policy_sha256],
            "champion": None if champion is None else [str(champion.version), champion.tags.get("policy_sha256")],
            "rules": self.config.promotion.model_dump(mode="json"),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def _decide(self, version: ModelVersion, champion: ModelVersion | None, decision_id: str) -> dict[str, Any]:
        """Plays both on fresh episodes and returns the record of the decision."""
        config, rules = self.config, self.config.promotion
        opponent = None if champion is None else policy_of_version(self.client, self.uri, champion)
        seeds = fresh_seeds(decision_id, rules.episodes, [config, *self._settings_of(opponent)])
        policy = load_policy(self.checkpoint)
        candidate_result = evaluate_policy(policy, config, seeds, stop=self.stop)
        champion_result = None
        if champion is not None and opponent is not None:
            other = load_policy(opponent)
            if (other.observation_space, other.action_space) != (policy.observation_space, policy.action_space):
                raise UserError(
                    f"version {champion.version} of {self.model}, the champion, has other spaces than {config.env_id}: "
                    f"it plays another task; set promotion.model to a name of this task's own"
                )
            champion_result = evaluate_policy(other, config, seeds, stop=self.stop)
        verdict = decide(candidate_result, champion_result, rules)
        return {
            "decision_id": decision_id,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": self.model,
            "rules": rules.model_dump(mode="json"),
            "verdict": asdict(verdict),
            "candidate": self._side(version, self.checkpoint, candidate_result),
            "champion": champion and opponent and champion_result and self._side(champion, opponent, champion_result),
        }

    def _settings_of(self, opponent: Checkpoint | None) -> list[TrainConfig]:
        return [] if opponent is None else [config_of_checkpoint(opponent)]

    def _side(self, version: ModelVersion, checkpoint: Checkpoint, result: EvaluationResult) -> dict[str, Any]:
        return {
            "version": str(version.version),
            "run_id": version.run_id,
            "policy_sha256": checkpoint.policy_sha256,
            "num_timesteps": checkpoint.num_timesteps,
            "versions": checkpoint.manifest.versions,
            "evaluation": result.to_dict(),
        }

    def _write(self, version: ModelVersion, record: dict[str, Any]) -> None:
        """Puts the decision on the run as an artifact and on the version as tags; the last tag says that it is done."""
        decision_id, verdict = record["decision_id"], record["verdict"]
        path = f"{FOLDER}/{decision_id}.json"
        self.client.log_text(self.run_id, json.dumps(record, indent=2, allow_nan=False), path)
        tags = {
            "gate.verdict": verdict["kind"],
            "gate.reasons": "\n".join(verdict["reasons"]),
            "gate.numbers": json.dumps(verdict["numbers"]),
            "gate.record": f"runs:/{self.run_id}/{path}",
            "gate.previous_champion": record["champion"]["version"] if record["champion"] else "none",
            "gate.decision_id": decision_id,
            DECISION_TAG + decision_id: verdict["kind"],
        }
        for key, value in tags.items():
            self.client.set_model_version_tag(self.model, version.version, key, value)

    def _read(self, decision_id: str) -> dict[str, Any]:
        path = self.client.download_artifacts(self.run_id, f"{FOLDER}/{decision_id}.json", str(fresh_directory()))
        record: dict[str, Any] = json.loads(Path(path).read_text())
        return record

    def _set_alias(self, version: ModelVersion, record: dict[str, Any], lock: PromotionLock) -> str | None:
        """Moves the aliases, the champion's last; returns what the candidate's version is now."""
        kind = record["verdict"]["kind"]
        if kind == "REJECT":
            return None
        self.client.set_registered_model_alias(self.model, CHALLENGER, version.version)
        if kind == "HOLD":
            return CHALLENGER
        now = champion_of(self.client, self.model)
        decided_against = record["champion"]["version"] if record["champion"] else None
        if (None if now is None else str(now.version)) != decided_against:
            logger.warning("the champion of %s is another one than when it was decided; it stays", self.model)
            return CHALLENGER
        lock.check()
        self.client.set_registered_model_alias(self.model, CHAMPION, version.version)
        return CHAMPION

    def _result(self, version: ModelVersion, record: dict[str, Any], alias: str | None) -> PromotionResult:
        verdict, champion = record["verdict"], record["champion"]
        return PromotionResult(
            verdict=Verdict(verdict["kind"], tuple(verdict["reasons"]), verdict["numbers"]),
            model=self.model,
            version=str(version.version),
            alias=alias,
            candidate=EvaluationResult.from_dict(record["candidate"]["evaluation"]),
            champion=EvaluationResult.from_dict(champion["evaluation"]) if champion else None,
            previous_version=champion["version"] if champion else None,
            decision_id=record["decision_id"],
        )


def fresh_seeds(decision_id: str, episodes: int, settings: Iterable[TrainConfig]) -> list[int]:
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
