"""Checks that an environment takes what the stages of a curriculum change."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym

from rl_training.config.sections import CurriculumStage
from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.step_contract import Breach, check_reset_result, check_space_change, failure
from rl_training.envs.episodes.attribute_changes import AttributeChanges
from rl_training.envs.validation.opening import open_env
from rl_training.envs.validation.report import Findings
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused


def list_first_options(config: TrainConfig) -> Mapping[str, Any]:
    """Returns the options of the first reset in training: those of the settings and of a stage that begins with it."""
    first = next(iter(config.curriculum), None)
    if first is None or first.success_rate is not None or first.from_step:
        return config.reset_options
    return {**config.reset_options, **first.reset_options}


def check_curriculum(config: TrainConfig, found: Findings, watch: CallWatch) -> None:
    """Takes one environment through all stages: sets their attributes, and resets it with their options."""
    if not config.curriculum:
        return
    with open_env(config, found, watch) as env:
        if env is None:
            return
        try:
            options = dict(list_first_options(config)) or None
            watch.call("the first reset", lambda: env.reset(seed=config.seed, options=options))
        except USER_CODE_ERRORS as error:
            found.add([failure("the first reset", error)])
            return
        changes = AttributeChanges(env, config.env_id)
        for i, stage in enumerate(config.curriculum):
            found.add(_set_attributes(changes, i, stage))
            if not found.any_fatal:
                found.add(_check_reset(env, config, i, watch))


def _set_attributes(changes: AttributeChanges, i: int, stage: CurriculumStage) -> list[Breach]:
    breaches = []
    for name, value in stage.attributes.items():
        key = f"curriculum.{i}.attributes.{name}"
        try:
            if not changes.set(name, value, 0):
                message = f"{key}: it is private or no plain data, so a resume can't set it again and is not exact"
                breaches.append(Breach("warning", "curriculum", message, subject=key))
        except EnvironmentRefused as error:
            breaches.append(Breach("fatal", "curriculum", f"{key}: {error}", subject=key))
        except USER_CODE_ERRORS as error:
            breaches.append(failure(f"{key}: setting it", error))
    return breaches


def _check_reset(env: gym.Env[Any, Any], config: TrainConfig, i: int, watch: CallWatch) -> list[Breach]:
    during = f"the reset in stage {i} of the curriculum"
    declared = env.observation_space, env.action_space
    options = {**config.reset_options, **config.curriculum[i].reset_options} or None
    try:
        result = watch.call(during, lambda: env.reset(options=deepcopy(options)))
    except USER_CODE_ERRORS as error:
        return [failure(during, error)]
    return [
        *check_reset_result(result),
        *check_space_change("observation_space", declared[0], env.observation_space),
        *check_space_change("action_space", declared[1], env.action_space),
    ]
