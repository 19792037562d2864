"""Promotes a checkpoint: registers it as a version, and makes it champion if the gate finds enough evidence.

Candidate and champion play the same fresh episodes under a lock that flows and the command line share. The decision is
recorded before the alias `champion` moves, which is the last write. A promotion that was interrupted in between is
therefore completed, not decided again, when it is requested again.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.named_modules import allowing, list_modules
from rl_training.config.settings import TrainConfig
from rl_training.errors import TrackingError, UserError
from rl_training.experiment.loading import recorded_settings
from rl_training.promotion.champion_history import (
    PROMOTED_BY,
    ROLLED_BACK,
    get_number,
    make_succession_tags,
    replace_champion,
    set_tags,
)
from rl_training.promotion.decision import (
    PromotionResult,
    draw_fresh_seeds,
    hash_question,
    make_result,
    read_decision,
    read_verdict,
    record_path,
)
from rl_training.promotion.decision_writing import DECISION_TAG, remove_old_rejects, write_decision
from rl_training.promotion.gate import FLOORS, decide
from rl_training.promotion.model_registry import (
    CHALLENGER,
    CHAMPION,
    get_champion,
    get_model_name,
    get_or_register,
)
from rl_training.promotion.opponent import Opponent, find_opponent
from rl_training.promotion.promotion_lock import PromotionLock, promotion_lock
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.workflows import load_policy, resolve_local_checkpoint
from rl_training.security.secrets import redact_text
from rl_training.system.download_directories import make_download_directory
from rl_training.tracking.mlflow_store import (
    connect,
    resolve_tracking_uri,
    translate_mlflow_errors,
)
from rl_training.tracking.shipping.run_page import try_refresh_page

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

LATER_RULES = ("success_floor", "allow_cut")
"""Rules that earlier versions did not have."""

EVALUATION_ENV = ("env_id", "env_kwargs", "wrappers", "reset_options")
"""Settings of evaluation that make its environment another one than that of training."""

TRIES = 3
"""How often to decide if each time the champion has changed before it could be replaced."""


def promote(
    checkpoint: str | Path | Checkpoint,
    config: TrainConfig,
    *,
    run_id: str,
    tracking_uri: str | None = None,
    force: str | None = None,
    stop: StopFlag | None = None,
) -> PromotionResult:
    """Registers a checkpoint and makes it champion if the evidence passes the gate.

    If the same candidate, champion and rules were decided on before, that decision stands and nothing is played.

    Args:
        checkpoint: The candidate, as a checkpoint, its directory, or a run's directory for its newest good checkpoint.
        config: The settings, with the environment to play in and the gate's rules.
        run_id: The MLflow run that the candidate comes from.
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded store.
        force: The reason for making the candidate champion whatever the verdict; the episodes are still played and
            recorded.
        stop: Polled between the steps of the episodes.

    Raises:
        CheckpointError: The candidate is damaged.
        TrackingError: The registry can't be reached, or another promotion did not end in time.
        UserError: MLflow has no such run, the champion plays another task, or the reason is empty.
        StopTraining: `stop` was set.
    """
    force = None if force is None else clean_reason(force, "a forced promotion")
    checkpoint, model = resolve_local_checkpoint(checkpoint), get_model_name(config)
    uri = resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, f"promotion of {checkpoint.path.name} of run {run_id}"):
        client = connect(uri)
        with promotion_lock(client, uri, model) as lock, allowing(list_modules(config).values()):
            result = _Promotion(client, uri, model, checkpoint, config, run_id, force, stop).run(lock)
        try_refresh_page(client, run_id)  # the run's page links the version
        return result


def clean_reason(reason: str, what: str) -> str:
    """Returns a user's reason as it is recorded: on one line, with secrets hidden.

    Raises:
        UserError: The reason is empty.
    """
    text = redact_text(" ".join(reason.split()))
    if not text:
        raise UserError(f"{what} needs a reason, which stays on record; got an empty one")
    return text


@dataclass(frozen=True)
class _Promotion:
    """A promotion that holds the model's lock."""

    client: MlflowClient
    uri: str
    model: str
    checkpoint: Checkpoint
    config: TrainConfig
    run_id: str
    force: str | None
    stop: StopFlag | None

    def run(self, lock: PromotionLock) -> PromotionResult:
        """Decides, records the decision and moves the aliases; repeats this if the champion has changed meanwhile."""
        for _ in range(TRIES):
            version, copy = get_or_register(
                self.client, self.uri, self.model, self.checkpoint, self.config, self.run_id
            )
            champion = get_champion(self.client, self.model)
            is_champion = get_number(version) == get_number(champion)
            if is_champion and PROMOTED_BY in version.tags:
                record = self._read(version.tags[PROMOTED_BY])
                self._name_unused(version, record)
                return self._make_result(version, record, CHAMPION)
            record = self._get_or_decide(version, copy, champion)
            if record["forced"] is None and record["verdict"]["kind"] != "PROMOTE":
                remove_old_rejects(self.client, self.model)
                return self._make_result(version, record, self._challenge(version, record, is_champion))
            if self._make_champion(version, record, champion, lock):
                return self._make_result(version, record, CHAMPION, moved=not is_champion)
            logger.warning("the champion of %s changed during the decision; deciding again", self.model)
        raise TrackingError(f"the champion of {self.model} changed {TRIES} times while it was decided; try again")

    def _name_unused(self, version: ModelVersion, record: dict[str, Any]) -> None:
        """Warns of rules and a reason that decide nothing, because the candidate is the champion already."""
        given = self.config.promotion.model_dump(mode="json", exclude={"enabled", "model"})
        unused = [f"promotion.{name}" for name, value in given.items() if record["rules"].get(name, value) != value]
        if self.force not in (None, record["forced"]):
            unused.append("the reason to force it")
        if unused:
            logger.warning(
                "version %s of %s is the champion already, so the decision that made it champion stands; not used: %s",
                version.version,
                self.model,
                ", ".join(unused),
            )

    def _get_or_decide(self, version: ModelVersion, copy: Checkpoint, champion: ModelVersion | None) -> dict[str, Any]:
        """Returns the record of the decision on this question, which is made and recorded unless it was before."""
        question = self._hash_question(version, champion)
        if DECISION_TAG + question in version.tags:
            return self._read(question)
        opponent, lost = find_opponent(self.client, self.uri, self.model, champion)
        if lost is not None:  # another question, which no longer stands once the champion can be loaded again
            question = hash_question({"question": question, "opponent": opponent and str(opponent.version.version)})
            if DECISION_TAG + question in version.tags:
                return self._read(question)
        record = self._decide(version, copy, opponent, question, lost)
        if champion is not None and lost is not None:
            record["lost_champion"] = {"version": str(champion.version), "reason": lost}
        write_decision(self.client, version, self.run_id, record)
        return record

    def _hash_question(self, version: ModelVersion, champion: ModelVersion | None) -> str:
        evaluation = self.config.evaluation.model_dump(mode="json")
        own = {name: evaluation[name] for name in EVALUATION_ENV if evaluation[name] is not None}
        rules = self.config.promotion.model_dump(mode="json", exclude={"enabled", "model"})
        for name in LATER_RULES:  # earlier versions had no such rule; their decisions stand where it has no effect
            if not rules[name]:
                del rules[name]
        return hash_question(
            {
                "model": self.model,
                "candidate": [str(version.version), self.run_id, self.checkpoint.policy_sha256],
                # A rollback is new evidence, so an earlier decision must not bring the version back.
                "rolled_back": version.tags.get(ROLLED_BACK),
                "champion": None if champion is None else [str(champion.version), champion.tags.get("policy_sha256")],
                "rules": {**rules, "max_episode_steps": evaluation["max_episode_steps"], **own},
                "forced": self.force,
            }
        )

    def _decide(
        self, version: ModelVersion, copy: Checkpoint, opponent: Opponent | None, question: str, lost: str | None
    ) -> dict[str, Any]:
        """Plays both registered copies on fresh episodes and returns the record of the decision."""
        config, rules = self.config, self.config.promotion
        sides = [copy] if opponent is None else [copy, opponent.checkpoint]
        played_before = [config, *map(recorded_settings, sides)]
        seeds = draw_fresh_seeds(question, rules.episodes, played_before)
        policy = load_policy(copy)
        candidate_result = evaluate_policy(policy, config, seeds, stop=self.stop)
        other_result, other_side = None, None
        if opponent is not None:
            other = opponent.policy
            if (other.observation_space, other.action_space) != (policy.observation_space, policy.action_space):
                raise UserError(
                    f"version {opponent.version.version} of {self.model}, the champion, has other spaces than "
                    f"{config.env_id}: it plays another task; set promotion.model to a name of this task's own"
                )
            other_result = evaluate_policy(other, config, seeds, stop=self.stop)
            other_side = self._describe_side(opponent.version, opponent.checkpoint, other_result)
        return {
            "decision_id": question,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": self.model,
            "rules": rules.model_dump(mode="json"),
            "verdict": asdict(decide(candidate_result, other_result, rules, lost=lost)),
            "forced": self.force,
            "candidate": self._describe_side(version, copy, candidate_result),
            "champion": other_side,
        }

    def _describe_side(self, version: ModelVersion, checkpoint: Checkpoint, result: EvaluationResult) -> dict[str, Any]:
        return {
            "version": str(version.version),
            "run_id": version.run_id,
            "policy_sha256": checkpoint.policy_sha256,
            "config_hash": checkpoint.manifest.config_hash,
            "num_timesteps": checkpoint.num_timesteps,
            "versions": checkpoint.manifest.versions,
            "evaluation": result.to_dict(),
        }

    def _read(self, question: str) -> dict[str, Any]:
        path = self.client.download_artifacts(self.run_id, record_path(question), str(make_download_directory()))
        return read_decision(Path(path))

    def _challenge(self, version: ModelVersion, record: dict[str, Any], is_champion: bool) -> str | None:
        """Makes a candidate on HOLD the challenger; returns the candidate's alias."""
        if record["verdict"]["kind"] == "HOLD":
            self.client.set_registered_model_alias(self.model, CHALLENGER, version.version)
            return CHAMPION if is_champion else CHALLENGER
        return CHAMPION if is_champion else None

    def _make_champion(
        self, version: ModelVersion, record: dict[str, Any], champion: ModelVersion | None, lock: PromotionLock
    ) -> bool:
        """Moves both aliases, `champion` last; returns False if the champion has changed since the decision."""
        set_tags(self.client, version, make_succession_tags(champion, record["decision_id"]))
        self.client.set_registered_model_alias(self.model, CHALLENGER, version.version)
        moved = replace_champion(self.client, self.model, champion, str(version.version), lock)
        if moved and record["forced"] is None and not read_verdict(record).judged_by:
            logger.warning(
                "version %s of %s is champion, judged by nothing but being first: set %s, or one of the other floors",
                version.version,
                self.model,
                FLOORS[0],
            )
        return moved

    def _make_result(
        self, version: ModelVersion, record: dict[str, Any], alias: str | None, *, moved: bool = False
    ) -> PromotionResult:
        return make_result(record, self.run_id, str(version.version), alias, moved=moved)
