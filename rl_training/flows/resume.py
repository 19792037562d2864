"""`resume-flow`: trains on from a checkpoint, and judges, promotes and reports as train-flow does."""

from __future__ import annotations

from typing import Any

from prefect import flow

from rl_training.flows.deployment_overrides import over_stored
from rl_training.flows.flow_process import flow_process
from rl_training.flows.pipeline import hold_job, train_and_judge
from rl_training.flows.previous_attempt import is_first_attempt
from rl_training.flows.secret_blocks import hand_down_blocks
from rl_training.flows.tasks import fetch, validate


@flow(name="resume-flow")
def resume_flow(
    source: str,
    overrides: dict[str, Any] | list[str] | None = None,
    fine_tune: bool = False,
    allow_modules: list[str] | None = None,
) -> dict[str, Any]:
    """Reloads a checkpoint and trains on from it.

    With unchanged settings, a run's newest good checkpoint goes on in the same run; a changed setting, such as a larger
    `total_timesteps`, is a new run, linked to the old one.

    Args:
        source: An MLflow run id, `runs:/ID`, `models:/NAME@ALIAS`, or the directory of a run or checkpoint.
        overrides: Settings that change, nested or by dotted keys, as a mapping or a list of texts:
            `{"total_timesteps": 200000}` or `["total_timesteps=200000"]`.
        fine_tune: Begin a new run with the checkpoint's weights alone; all settings but those of the network may change
            then, the environment among them.
        allow_modules: Modules of environments and wrappers that a received run may name; a run of the worker's own
            home, or one whose modules it has trained with, needs none.

    Returns:
        The summary; see `rl_training.flows.pipeline.summarize`.

    Raises:
        AlreadyTraining: Another process trains the run that is resumed.
        CheckpointError: There is no good checkpoint, a setting or space differs that must be equal, or no layer of the
            network fits.
        ConfigError: A line for every fault of the overrides; nothing was made, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        ModuleRefused: The run was received, and names a module that nobody has allowed.
        RunFailed: The run broke; its last good checkpoint is kept.
    """
    from rl_training.experiment.loading import config_to_resume
    from rl_training.experiment.registry import get_algorithm
    from rl_training.runtime.checkpoint import open_checkpoint
    from rl_training.runtime.fine_tuning import WeightsOf

    with flow_process():
        hand_down_blocks()
        changes = over_stored(overrides)
        # A later attempt takes its run from the process before it, which may sleep and have the lock still.
        to_resume = not changes and not fine_tune and is_first_attempt()
        # All of it was verified when it was fetched.
        checkpoint = open_checkpoint(fetch(source, fine_tune, to_resume), policy_only=True)
        settings = config_to_resume(checkpoint, changes, fine_tune=fine_tune, allow_modules=allow_modules or ())
        make_trainer = get_algorithm(settings.algo).make_trainer
        resume_from = WeightsOf(checkpoint) if fine_tune else checkpoint
        with hold_job(settings):
            validate(settings)
            return train_and_judge(
                settings, lambda callbacks, stop: make_trainer(settings, callbacks, resume_from=resume_from, stop=stop)
            )
