"""Validates a native vector environment in the way that training steps it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import MAKING_SECONDS, CallBlocked, CallWatch
from rl_training.envs.contract.step_contract import Breach, check_space_change, failure
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation.report import Findings
from rl_training.errors import EnvironmentFault, EnvironmentRefused

STEPS = 100
"""Vector steps that are played with random actions."""


def check_native(config: TrainConfig, single: gym.Env[Any, Any], found: Findings, watch: CallWatch) -> None:
    """Makes the native vector environment, plays it, and reports its faults and spaces that differ from `single`."""
    during = "making the native vector environment"
    try:
        envs = watch.call(during, TrainingEnvs, config, 1.0, seconds=MAKING_SECONDS)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "not-made", str(error).removeprefix(f"environment {config.env_id!r}: "))])
        return
    except CallBlocked as error:
        found.add([failure(during, error)])
        return
    try:
        for name in ("observation_space", "action_space"):
            native = getattr(envs, f"single_{name}")
            found.add(check_space_change(name, getattr(single, name), native), during="native vector environment")
        during = "a reset of the native vector environment"
        watch.call(during, envs.start)
        for i, stage in enumerate(config.curriculum):
            during = f"stage {i} of the curriculum"
            for name, value in stage.attributes.items():
                watch.call(during, envs.set_attr, name, value)
            if stage.reset_options:
                watch.call(during, envs.set_reset_options, {**config.reset_options, **stage.reset_options})
        during = "a step of the native vector environment"
        space = batch_space(envs.single_action_space, envs.num_envs)
        space.seed(config.seed)
        for _ in range(STEPS):
            actions = space.sample() - getattr(envs.single_action_space, "start", 0)
            watch.call(during, envs.step, np.reshape(actions, (envs.num_envs, *envs.codec.shape)))
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "curriculum", f"{during}: {error}")])
    except EnvironmentFault as error:
        found.add([Breach("fatal", "raised", str(error))])
    except CallBlocked as error:
        found.add([failure(during, error)])
    finally:
        envs.close()
