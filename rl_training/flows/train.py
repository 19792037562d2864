"""`train-flow`: from settings to a judged, registered and reported policy."""

from __future__ import annotations

from typing import Any

from prefect import flow

from rl_training.config.parsing import Overrides
from rl_training.config.settings import TrainConfig
from rl_training.flows.deployment_overrides import over_stored
from rl_training.flows.flow_process import flow_process
from rl_training.flows.missed_schedules import made_up_for, skipped
from rl_training.flows.pipeline import hold_job, train_and_judge
from rl_training.flows.secret_blocks import hand_down_blocks
from rl_training.flows.tasks import validate


@flow(name="train-flow")
def train_flow(
    config: str | dict[str, Any] = "ppo/cartpole", overrides: dict[str, Any] | list[str] | None = None
) -> dict[str, Any]:
    """Validates the environment, trains, evaluates, promotes and reports.

    A scheduled run that another one has made up for does nothing, and is Completed under the name Skipped.

    Args:
        config: A YAML file, the name of a shipped one such as `ppo/cartpole`, or the settings themselves.
        overrides: Settings that go before the config's, nested or by dotted keys, as a mapping or a list of texts:
            `{"evaluation.every": 5000}` or `["evaluation.every=5000"]`.

    Returns:
        The summary; see `rl_training.flows.pipeline.summarize`.

    Raises:
        ConfigError: A line for every fault of the settings; nothing was made, trained or logged.
        EnvironmentRefused: The environment can't be trained on.
        RunFailed: The run broke; its last good checkpoint is kept.
    """
    from rl_training.experiment.default_manager import DefaultExperimentManager

    with flow_process():
        if (reason := made_up_for()) is not None:
            return skipped(reason)
        hand_down_blocks()
        settings = read_settings(config, over_stored(overrides))
        manager = DefaultExperimentManager()
        with hold_job(settings):
            validate(settings)
            return train_and_judge(settings, lambda callbacks, stop: manager.setup(settings, callbacks, stop=stop))


def read_settings(config: str | dict[str, Any], overrides: Overrides | None) -> TrainConfig:
    """Returns the settings that the flow's parameters stand for.

    Raises:
        ConfigError: A line for every fault.
    """
    from rl_training.experiment.loading import config_from_mapping, load_config

    overrides = overrides or {}
    return config_from_mapping(config, overrides) if isinstance(config, dict) else load_config(config, overrides)
