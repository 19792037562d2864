"""`train-flow`: trains a policy from settings, then evaluates, registers and reports it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from rl_training.config.parsing import Overrides
from rl_training.config.settings import TrainConfig
from rl_training.flows.artifacts_and_events import emit_end
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.from_server.deployment_overrides import merge_stored_overrides
from rl_training.flows.from_server.missed_schedules import find_skip_reason, skip
from rl_training.flows.from_server.secret_blocks import enable_secret_blocks
from rl_training.flows.pipeline import hold_job, run_pipeline
from rl_training.flows.sweep import run_sweep_in_flow
from rl_training.flows.tasks import validate


@flow(name="train-flow", on_completion=[emit_end])
def train_flow(
    config: str | dict[str, Any] = "ppo/cartpole",
    overrides: dict[str, Any] | list[str] | None = None,
    seeds: Annotated[int, Field(ge=1)] | None = None,
) -> dict[str, Any]:
    """Validates the environment, trains, evaluates, promotes and reports.

    A scheduled flow run does nothing if a later one has already started in its place; it then ends as Completed, with
    the state name Skipped.

    Args:
        config: A YAML file, the name of a shipped config such as `ppo/cartpole`, or the settings themselves.
        overrides: Changes to the config, with nested or dotted keys, as a mapping or a list of `key=value` texts:
            `{"evaluation.every": 5000}` or `["evaluation.every=5000"]`.
        seeds: The number of runs, with seeds from the config's own on; they are trained as a sweep, and none is
            promoted. By default one run.

    Returns:
        The summary; see `rl_training.flows.pipeline.summarize`. With `seeds`, one for each run (`runs`), and what they
            have in common (`aggregate`).

    Raises:
        ConfigError: The settings are not valid (one line for each fault); nothing was created, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        RunFailed: Training failed; the newest good checkpoint is kept.
    """
    from rl_training.experiment.default_manager import DefaultExperimentManager

    with prepare_flow_process():
        if (reason := find_skip_reason()) is not None:
            return skip(reason)
        enable_secret_blocks()
        settings = read_settings(config, merge_stored_overrides(overrides))
        if seeds is not None:
            return _train_seeds(settings, seeds)
        manager = DefaultExperimentManager()
        with hold_job(settings):
            setup = partial(manager.setup, settings, validation=validate(settings))
            return run_pipeline(settings, lambda callbacks, stop: setup(callbacks, stop=stop))


def _train_seeds(settings: TrainConfig, seeds: int) -> dict[str, Any]:
    from rl_training.sweeps.running import describe_seeds, make_seeds_sweep  # imports SciPy's statistics

    return describe_seeds(run_sweep_in_flow(make_seeds_sweep(settings, seeds)))


def read_settings(config: str | dict[str, Any], overrides: Overrides | None) -> TrainConfig:
    """Returns the settings for a flow's parameters `config` and `overrides`.

    Raises:
        ConfigError: The settings are not valid; the message has one line for each fault.
    """
    from rl_training.experiment.loading import config_from_mapping, load_config

    overrides = overrides or {}
    return config_from_mapping(config, overrides) if isinstance(config, dict) else load_config(config, overrides)
