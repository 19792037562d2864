"""Monitors a promoted policy: plays fresh episodes, compares them with its promotion, and logs the result."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.checking import require_sections
from rl_training.config.named_modules import allowing, list_modules
from rl_training.config.parsing import Overrides, read_overrides
from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError, NoChampion, UserError
from rl_training.experiment.loading import config_from_mapping, config_of_checkpoint, recorded_settings
from rl_training.promotion.champion_history import PROMOTED_BY, get_number
from rl_training.promotion.decision import draw_fresh_seeds, read_decision, record_path
from rl_training.promotion.model_registry import CHAMPION, get_champion
from rl_training.promotion.monitoring_run import (
    MonitoringRun,
    RecordedEvaluation,
    find_monitoring_run,
    get_or_create_monitoring_run,
)
from rl_training.promotion.performance_drop import DropVerdict, find_drop
from rl_training.promotion.promotion_lock import promotion_lock
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy, select_evaluation_numbers
from rl_training.runtime.workflows import load_policy
from rl_training.system.download_directories import discard_downloads, make_download_directory
from rl_training.system.programs import program
from rl_training.tracking.checkpoint_sources import ModelSource, download_checkpoint, find_version, parse_source
from rl_training.tracking.mlflow_store import (
    connect,
    resolve_tracking_uri,
    strip_credentials,
    translate_mlflow_errors,
)
from rl_training.tracking.version_files import download_version_policy

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

CHANGEABLE = ("promotion", "evaluation", "env_kwargs")
"""Sections of the settings that may differ from the promotion: rules, evaluation, and secrets that were hidden."""


@dataclass(frozen=True, kw_only=True)
class MonitoringResult:
    """The result of an evaluation."""

    evaluation_id: str
    evaluation: EvaluationResult
    """The fresh episodes."""
    drop: DropVerdict
    env_id: str
    policy_sha256: str
    num_timesteps: int
    """Number of environment steps that the policy was trained for."""
    model: str | None = None
    """Name of the registered model; None, like all fields below, if the source is no registered version."""
    version: str | None = None
    is_champion: bool = False
    """Whether the version was champion when the evaluation was recorded."""
    number: int | None = None
    """Number of the evaluation, counted from 1; it is the step of its metrics."""
    run_id: str | None = None
    """The model's monitoring run in MLflow."""
    ui: str | None = None
    """The address of that run's page, or the command that opens the UI."""
    record: str | None = None
    """The address of the record with every episode."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON, with summaries instead of episodes."""
        return {
            "evaluation_id": self.evaluation_id,
            "model": self.model,
            "version": self.version,
            "is_champion": self.is_champion,
            "dropped": self.drop.dropped,
            "reasons": list(self.drop.reasons),
            "numbers": self.drop.numbers,
            "evaluation": select_evaluation_numbers(self.evaluation.to_dict()),
            "env_id": self.env_id,
            "policy_sha256": self.policy_sha256,
            "num_timesteps": self.num_timesteps,
            "number": self.number,
            "run_id": self.run_id,
            "ui_command": self.ui,
            "record": self.record,
        }


@discard_downloads()
def monitor(
    source: str | Path,
    overrides: Overrides = (),
    *,
    episodes: int | None = None,
    evaluation_id: str | None = None,
    allow_modules: Collection[str] = (),
    tracking_uri: str | None = None,
    stop: StopFlag | None = None,
) -> MonitoringResult:
    """Plays fresh episodes with a policy; for a registered version, compares them with its promotion and logs them.

    The episode seeds are unique to this evaluation: no training, decision or other evaluation of the version used them.

    Args:
        source: Usually `models:/NAME@champion`; also another version, an MLflow run or a directory.
        overrides: Settings of `promotion.*`, `evaluation.*` and `env_kwargs.*` that differ from the promotion.
        episodes: Number of episodes; by default `promotion.episodes`.
        evaluation_id: Id of the evaluation; by default a new id. If the registered version has an evaluation with this
            id, its result is returned and nothing is played.
        allow_modules: Modules that a received policy may name; see `rl_training.config.named_modules`.
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded one.
        stop: Polled between the steps of the episodes.

    Raises:
        CheckpointError: The policy is damaged.
        ConfigError: An override is not valid, or sets something other than `CHANGEABLE`.
        EnvironmentFault: An environment broke its contract.
        ModuleRefused: A received policy names a module that is not allowed.
        NoChampion: The source is `models:/NAME@champion`, and there is no champion.
        TrackingError: MLflow can't be reached.
        UserError: There is no such source.
        StopTraining: `stop` was set.
    """
    require_sections(read_overrides(overrides), CHANGEABLE, "an evaluation")
    evaluation_id = evaluation_id or uuid.uuid4().hex
    parsed = None if Path(source).exists() else parse_source(str(source))
    if not isinstance(parsed, ModelSource):
        checkpoint = download_checkpoint(source, tracking_uri=tracking_uri, wanted="policy")
        given = config_of_checkpoint(checkpoint, allow_modules=allow_modules)
        config = _make_settings(given, None, overrides, episodes)
        evaluation = _play(checkpoint, config, evaluation_id, None, stop)
        drop = find_drop(evaluation, None, config.promotion)
        return _make_result(checkpoint, given.env_id, evaluation_id, evaluation, drop)
    uri = resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, str(source)):
        client = connect(uri)
        version = _find_version(client, uri, parsed)
        return _monitor_version(client, uri, version, overrides, episodes, evaluation_id, allow_modules, stop)


def require_registered(source: str | Path) -> None:
    """Checks that a source is a registered version, because only that can be rolled back.

    Raises:
        UserError: The source is something else.
    """
    if Path(source).exists() or not isinstance(parse_source(str(source)), ModelSource):
        raise UserError(f"got {source}, but only a champion can be rolled back; expected models:/NAME@champion")


def _find_version(client: MlflowClient, uri: str, source: ModelSource) -> ModelVersion:
    if source.alias != CHAMPION:
        return find_version(client, source)
    champion = get_champion(client, source.name)
    if champion is None:
        where, name = strip_credentials(uri), source.name
        versions = [int(version.version) for version in client.search_model_versions(f"name = '{name}'")]
        if not versions:
            raise NoChampion(f"MLflow at {where} has no version of a registered model {name!r}")
        offer = f"`rl-training promote models:/{name}/{max(versions)}` offers the newest"
        raise NoChampion(f"none of the {len(versions)} versions of {name!r} in MLflow at {where} is champion; {offer}")
    return champion


def _monitor_version(
    client: MlflowClient,
    uri: str,
    version: ModelVersion,
    overrides: Overrides,
    episodes: int | None,
    evaluation_id: str,
    allow_modules: Collection[str],
    stop: StopFlag | None,
) -> MonitoringResult:
    checkpoint = _download(client, uri, version)
    given = config_of_checkpoint(checkpoint, allow_modules=allow_modules)
    run = find_monitoring_run(client, uri, version.name)
    there = run.find(evaluation_id) if run is not None else None
    if run is None or there is None:
        decision = _read_promotion(client, version)
        config = _make_settings(given, decision, overrides, episodes)
        then = None if decision is None else EvaluationResult.from_dict(decision["candidate"]["evaluation"])
        evaluation = _play(checkpoint, config, evaluation_id, then, stop)
        record = {
            "evaluation_id": evaluation_id,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "model": version.name,
            "version": str(version.version),
            "policy_sha256": checkpoint.policy_sha256,
            "promoted_by": version.tags.get(PROMOTED_BY),
            "rules": config.promotion.model_dump(mode="json"),
            "drop": asdict(find_drop(evaluation, then, config.promotion)),
            "evaluation": evaluation.to_dict(),
        }
        with promotion_lock(client, uri, version.name):
            run = get_or_create_monitoring_run(client, uri, version.name, config.env_id)
            is_champion = get_number(get_champion(client, version.name)) == get_number(version)
            there = run.find(evaluation_id) or run.add({**record, "is_champion": is_champion})
    evaluation = EvaluationResult.from_dict(there.record["evaluation"])
    drop = DropVerdict.from_dict(there.record["drop"])
    run.log(there, _make_metrics(there, evaluation, drop))
    return _make_result(checkpoint, given.env_id, evaluation_id, evaluation, drop, run, there)


def _download(client: MlflowClient, uri: str, version: ModelVersion) -> Checkpoint:
    try:
        return download_version_policy(client, uri, version)
    except CheckpointError as error:
        name, champion = version.name, get_champion(client, version.name)
        if get_number(champion) != get_number(version):
            raise
        raise CheckpointError(
            f"the champion of {name}, version {version.version}, can't be loaded: {error}; go back with "
            f"`{program('rl-training')} rollback {shlex.quote(name)} --reason TEXT`, or promote another version"
        ) from error


def _read_promotion(client: MlflowClient, version: ModelVersion) -> dict[str, Any] | None:
    """Returns the record of the decision that made a version champion, or None if there is no such record."""
    decision_id = version.tags.get(PROMOTED_BY)
    if decision_id is None or not version.run_id:
        return None
    path = record_path(decision_id)
    if path not in {entry.path for entry in client.list_artifacts(version.run_id, str(Path(path).parent))}:
        return None
    return read_decision(Path(client.download_artifacts(version.run_id, path, str(make_download_directory()))))


def _make_settings(
    given: TrainConfig, decision: Mapping[str, Any] | None, overrides: Overrides, episodes: int | None
) -> TrainConfig:
    """Returns the policy's settings with the rules of its promotion, without the floor if the promotion was forced."""
    settings = given.model_dump(mode="json")
    if decision is not None:
        settings["promotion"] = dict(decision["rules"])
        if decision.get("forced") is not None:
            settings["promotion"]["floor"] = None
    if episodes is not None:
        settings["promotion"]["episodes"] = episodes
    return config_from_mapping(settings, overrides, source="settings")


def _play(
    checkpoint: Checkpoint,
    config: TrainConfig,
    evaluation_id: str,
    then: EvaluationResult | None,
    stop: StopFlag | None,
) -> EvaluationResult:
    used: set[int] = set() if then is None else set(then.seeds)
    wanted = config.promotion.episodes
    drawn = draw_fresh_seeds(f"evaluation {evaluation_id}", wanted + len(used), [recorded_settings(checkpoint)])
    seeds = [seed for seed in drawn if seed not in used][:wanted]
    with allowing(list_modules(config).values()):
        policy = load_policy(checkpoint)
    return evaluate_policy(policy, config, seeds, stop=stop)


def _make_metrics(there: RecordedEvaluation, evaluation: EvaluationResult, drop: DropVerdict) -> dict[str, float]:
    compared = ("upper", "promoted_lower", "floor")
    numbers = {name: value for name, value in drop.numbers.items() if name in compared}
    numbers |= {"dropped": float(drop.dropped), "version": float(there.record["version"])}
    return evaluation.metrics("monitoring") | {f"monitoring/{name}": value for name, value in numbers.items()}


def _make_result(
    checkpoint: Checkpoint,
    env_id: str,
    evaluation_id: str,
    evaluation: EvaluationResult,
    drop: DropVerdict,
    run: MonitoringRun | None = None,
    there: RecordedEvaluation | None = None,
) -> MonitoringResult:
    known: dict[str, Any] = {}
    if run is not None and there is not None:
        known = {name: there.record[name] for name in ("model", "version", "is_champion")}
        known |= {"number": there.number, "run_id": run.run_id, "ui": run.ui}
        known["record"] = f"runs:/{run.run_id}/{there.path}"
    return MonitoringResult(
        evaluation_id=evaluation_id,
        evaluation=evaluation,
        drop=drop,
        env_id=env_id,
        policy_sha256=checkpoint.policy_sha256,
        num_timesteps=checkpoint.num_timesteps,
        **known,
    )
