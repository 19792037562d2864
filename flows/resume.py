"""`resume-flow`: trains on from a checkpoint, and judges, promotes and reports as train-flow does."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.chain import train_and_judge
from flows.tasks import fetch, validate


@flow(name="resume-flow")
def resume_flow(source: str, overrides: dict[str, Any] | list[str] | None = None) -> dict[str, Any]:
    """Reloads a checkpoint and trains on from it.

    With unchanged settings, a run's newest good checkpoint goes on in the same run; a changed setting, such as a larger
    `total_timesteps`, is a new run, linked to the old one.

    Args:
        source: An MLflow run id, `runs:/ID`, `models:/NAME@ALIAS`, or the directory of a run or checkpoint.
        overrides: Settings that change, nested or by dotted keys, as a mapping or a list of texts:
            `{"total_timesteps": 200000}` or `["total_timesteps=200000"]`.

    Returns:
        The summary; see `flows.chain.summarize`.

    Raises:
        CheckpointError: There is no good checkpoint, or a setting differs that must be equal.
        ConfigError: A line for every fault of the overrides; nothing was made, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        RunFailed: The run broke; its last good checkpoint is kept.
    """
    from rl_training.experiment.loading import config_to_resume
    from rl_training.experiment.registry import get_algorithm
    from rl_training.runtime.workflows import resolve_local_checkpoint

    checkpoint = resolve_local_checkpoint(fetch(source))
    settings = config_to_resume(checkpoint, overrides or {})
    validate(settings)
    make_trainer = get_algorithm(settings.algo).make_trainer
    return train_and_judge(
        settings, lambda callbacks, stop: make_trainer(settings, callbacks, resume_from=checkpoint, stop=stop)
    )
