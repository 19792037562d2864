"""`retrain-flow`: trains a task anew where that is due, from the champion's weights or from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from rl_training.config.settings import TrainConfig
from rl_training.errors import AlreadyTraining
from rl_training.flows.deployment_overrides import over_stored
from rl_training.flows.flow_process import flow_process
from rl_training.flows.missed_schedules import made_up_for, skipped
from rl_training.flows.pipeline import hold_job, train_and_judge
from rl_training.flows.previous_attempt import has_begun
from rl_training.flows.secret_blocks import hand_down_blocks
from rl_training.flows.tasks import fetch, guard, validate
from rl_training.flows.train import read_settings
from rl_training.flows.training_run import MakeTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rl_training.runs.stopping import StopFlag
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.trainer import Trainer

SCRATCH = "scratch"


@flow(name="retrain-flow")
def retrain_flow(
    config: str | dict[str, Any] = "ppo/cartpole",
    overrides: dict[str, Any] | list[str] | None = None,
    start: Literal["champion", "scratch"] = "champion",
    min_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
) -> dict[str, Any]:
    """Trains, evaluates, promotes and reports as train-flow does, with a seed of its own, where that is due.

    Nothing is due while the same job is training, while the champion is younger than `min_hours`, and for a scheduled
    run that another one has made up for: the flow run is then Completed under the name Skipped, with the reason as its
    message.

    Args:
        config: A YAML file, the name of a shipped one such as `ppo/cartpole`, or the settings themselves.
        overrides: Settings that go before the config's, nested or by dotted keys, as a mapping or a list of texts.
        start: `champion`: from the weights of the champion, where there is one; all settings but those of the network
            may differ from those that it was trained with. `scratch`: from new ones.
        min_hours: Hours since the champion's version was registered before which nothing is due.

    Returns:
        The summary (see `rl_training.flows.pipeline.summarize`) with `seed`, `start` (`models:/NAME/VERSION`, or
        `scratch`), the `reason` for that, and `skipped`: None, or why nothing was due, which is all that there is then.

    Raises:
        CheckpointError: The champion's weights don't fit the settings.
        ConfigError: A line for every fault of the settings; nothing was made, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        RunFailed: The run broke; its last good checkpoint is kept.
    """
    with flow_process():
        if (reason := made_up_for()) is not None:
            return skipped(reason)
        hand_down_blocks()
        settings = _with_own_seed(read_settings(config, over_stored(overrides)))
        try:
            with hold_job(settings):
                plan = guard(settings, start, 0.0 if has_begun() else min_hours)
                if not plan["due"]:
                    return skipped(plan["reason"])
                validate(settings)
                begins = plan["source"] or SCRATCH
                summary = train_and_judge(settings, _start(settings, plan["source"]), {"retrain.start": begins})
                return {**summary, "seed": settings.seed, "start": begins, "reason": plan["reason"], "skipped": None}
        except AlreadyTraining as busy:
            return skipped(str(busy))


def _with_own_seed(settings: TrainConfig) -> TrainConfig:
    """Each run of a schedule has a seed of its own, and a retry of the flow run the same one again."""
    from rl_training.seeding import derived_seed

    return settings.model_copy(update={"seed": derived_seed(settings.seed, f"flow run {flow_run.id}")})


def _start(settings: TrainConfig, source: str | None) -> MakeTrainer:
    """Returns what makes the trainer of the first attempt, and fetches the champion's weights for it."""

    def make(callbacks: Sequence[Callback], stop: StopFlag) -> Trainer:
        from rl_training.config.named_modules import record_modules
        from rl_training.experiment.registry import get_algorithm
        from rl_training.runtime.checkpoint import open_checkpoint
        from rl_training.runtime.fine_tuning import WeightsOf

        record_modules(settings)  # which are the deployment's own, whoever trained the champion
        resume_from = None
        if source is not None:
            resume_from = WeightsOf(open_checkpoint(fetch(source, fine_tune=True), policy_only=True))
        return get_algorithm(settings.algo).make_trainer(settings, callbacks, resume_from=resume_from, stop=stop)

    return make
