"""`retrain-flow`: retrains if a retraining is due, from the champion's weights or from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from rl_training.config.settings import TrainConfig
from rl_training.errors import AlreadyTraining
from rl_training.flows.artifacts_and_events import emit_end
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.from_server.deployment_overrides import merge_stored_overrides
from rl_training.flows.from_server.missed_schedules import find_skip_reason, skip
from rl_training.flows.from_server.secret_blocks import enable_secret_blocks
from rl_training.flows.pipeline import hold_job, run_pipeline
from rl_training.flows.previous_attempt import has_opened_run
from rl_training.flows.tasks import fetch, guard, validate
from rl_training.flows.tracked_run import MakeTrainer
from rl_training.flows.train import read_settings
from rl_training.tracking.mlflow_names import RETRAINED_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rl_training.runs.stopping import StopFlag
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.trainer import Trainer

SCRATCH = "scratch"


@flow(name="retrain-flow", on_completion=[emit_end])
def retrain_flow(
    config: str | dict[str, Any] = "ppo/cartpole",
    overrides: dict[str, Any] | list[str] | None = None,
    start: Literal["champion", "scratch"] = "champion",
    min_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
) -> dict[str, Any]:
    """Trains, evaluates, promotes and reports as train-flow does, with a new seed, if a retraining is due.

    A retraining is not due while the same job is training, while the champion is younger than `min_hours`, or if a
    later flow run has already started in place of this scheduled one. The flow run then ends as Completed, with the
    state name Skipped and the reason as its message.

    Args:
        config: A YAML file, the name of a shipped config such as `ppo/cartpole`, or the settings themselves.
        overrides: Changes to the config, with nested or dotted keys, as a mapping or a list of `key=value` texts.
        start: `champion` to start from the champion's weights if there is a champion; all settings may differ from its
            own except the network's. `scratch` to start from new weights.
        min_hours: Skip the retraining if the champion's version was registered less than this many hours ago.

    Returns:
        The summary (see `rl_training.flows.pipeline.summarize`) and `seed`, `start` (`models:/NAME/VERSION` or
        `scratch`), the `reason` for that start, and `skipped` (None). If nothing was due, `skipped` alone, with the
        reason.

    Raises:
        CheckpointError: The champion's weights don't fit the settings.
        ConfigError: The settings are not valid (one line for each fault); nothing was created, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        RunFailed: Training failed; the newest good checkpoint is kept.
    """
    with prepare_flow_process():
        if (reason := find_skip_reason()) is not None:
            return skip(reason)
        enable_secret_blocks()
        settings = _derive_seed(read_settings(config, merge_stored_overrides(overrides)))
        try:
            with hold_job(settings):
                plan = guard(settings, start, 0.0 if has_opened_run() else min_hours)
                if not plan["due"]:
                    return skip(plan["reason"])
                start_training = _prepare_start(settings, plan["source"], validate(settings))
                started_from = plan["source"] or SCRATCH
                summary = run_pipeline(settings, start_training, {RETRAINED_FROM: started_from})
                return {
                    **summary,
                    "seed": settings.seed,
                    "start": started_from,
                    "reason": plan["reason"],
                    "skipped": None,
                }
        except AlreadyTraining as busy:
            return skip(str(busy))


def _derive_seed(settings: TrainConfig) -> TrainConfig:
    """Returns the settings with a seed for this flow run; a retry of the flow run gets the same seed again."""
    from rl_training.seeding import derived_seed

    return settings.model_copy(update={"seed": derived_seed(settings.seed, f"flow run {flow_run.id}")})


def _prepare_start(settings: TrainConfig, source: str | None, validation: Mapping[str, Any]) -> MakeTrainer:
    """Returns a function that fetches the champion's weights, if any, and makes the trainer of the first attempt."""

    def make(callbacks: Sequence[Callback], stop: StopFlag) -> Trainer:
        from rl_training.config.named_modules import record_modules
        from rl_training.experiment.default_manager import DefaultExperimentManager
        from rl_training.runtime.checkpoint import open_checkpoint

        record_modules(settings)  # the settings are the deployment's, so their modules may be imported
        checkpoint = None if source is None else open_checkpoint(fetch(source, fine_tune=True), policy_only=True)
        manager = DefaultExperimentManager()
        return manager.setup(
            settings, callbacks, checkpoint=checkpoint, fine_tune=True, stop=stop, validation=validation
        )

    return make
