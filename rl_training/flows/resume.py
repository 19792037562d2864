"""`resume-flow`: resumes training from a checkpoint, then evaluates, promotes and reports as train-flow does."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from rl_training.flows.artifacts_and_events import emit_end
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.from_server.deployment_overrides import merge_stored_overrides
from rl_training.flows.from_server.secret_blocks import enable_secret_blocks
from rl_training.flows.pipeline import hold_job, run_pipeline
from rl_training.flows.previous_attempt import is_first_attempt
from rl_training.flows.tasks import fetch, validate


@flow(name="resume-flow", on_completion=[emit_end])
def resume_flow(
    source: str,
    overrides: dict[str, Any] | list[str] | None = None,
    fine_tune: bool = False,
    allow_modules: list[str] | None = None,
) -> dict[str, Any]:
    """Loads a checkpoint and resumes training from it.

    With unchanged settings, a run's newest good checkpoint is resumed in the same run. If a setting changes, such as
    `total_timesteps`, a new run is created and linked to the old one.

    Args:
        source: An MLflow run id, `runs:/ID`, `models:/NAME@ALIAS`, or the directory of a run or checkpoint.
        overrides: Settings to change, with nested or dotted keys, as a mapping or a list of `key=value` texts:
            `{"total_timesteps": 200000}` or `["total_timesteps=200000"]`.
        fine_tune: Whether to start a new run from the checkpoint's weights alone; then all settings may change except
            the network's, even the environment.
        allow_modules: Modules of environments, networks and the like that a received run may import. Runs in the
            worker's own home directory, and runs whose modules it has trained with before, need no permission.

    Returns:
        The summary; see `rl_training.flows.pipeline.summarize`.

    Raises:
        AlreadyTraining: Another process is training the run.
        CheckpointError: There is no good checkpoint, a setting or space differs that must not, or no layer of the
            network fits.
        ConfigError: The overrides are not valid (one line for each fault); nothing was created, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        ModuleRefused: The run was received, and names a module that is not allowed.
        RunFailed: Training failed; the newest good checkpoint is kept.
    """
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.experiment.loading import config_to_resume
    from rl_training.runtime.checkpoint import open_checkpoint

    with prepare_flow_process():
        enable_secret_blocks()
        changes = merge_stored_overrides(overrides)
        # A later attempt takes the run over from the previous process, which may be suspended and still hold the lock.
        to_resume = not changes and not fine_tune and is_first_attempt()
        # `fetch` has verified the complete checkpoint.
        checkpoint = open_checkpoint(fetch(source, fine_tune, to_resume), policy_only=True)
        settings = config_to_resume(checkpoint, changes, fine_tune=fine_tune, allow_modules=allow_modules or ())
        setup = partial(DefaultExperimentManager().setup, settings, checkpoint=checkpoint, fine_tune=fine_tune)
        with hold_job(settings):
            checked = validate(settings)
            return run_pipeline(settings, lambda callbacks, stop: setup(callbacks, stop=stop, validation=checked))
