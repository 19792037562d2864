"""Makes environments from the settings: one, or many that are stepped together."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets
from rl_training.envs.native.envpool_env import EnvPoolVectorEnv
from rl_training.envs.native.native_entry_point import make_native
from rl_training.envs.native.native_vector_env import NativeVectorEnv
from rl_training.envs.single_env import construct, make_bare_env, make_env
from rl_training.envs.vector.env_group import divide_equally
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.envs.vector.ray_worker import make_ray_env
from rl_training.moved_names import find_old_names

__all__ = ["make_bare_env", "make_env", "make_vector_env"]
__getattr__ = find_old_names(__name__)

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""CPU quota of the container: microseconds of CPU time, and the length of the period in microseconds."""


def make_vector_env(config: TrainConfig) -> MaskedVectorEnv | NativeVectorEnv:
    """Makes `config.num_envs` environments that are stepped together.

    The autoreset mode is DISABLED: rows whose episode ended are reset by `reset(options={"reset_mask": mask})`.

    Raises:
        EnvironmentRefused: As `make_env`; or the spaces of the environments differ, or no native one exists.
        UserError: There is no Ray for `vectorization: ray`.
    """
    if config.vectorization in NATIVE:
        return _make_native(config)
    if config.vectorization == "ray":
        return make_ray_env(config, usable_cpus())
    groups = divide_into_groups(config.vectorization, config.num_envs, usable_cpus())
    return MaskedVectorEnv(config, groups, partial(make_env, config))


def usable_cpus() -> int:
    """Returns how many CPUs this process may use, given its affinity and the quota of its container."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        return min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or the quota is `max`
        return cpus


def divide_into_groups(vectorization: str, num_envs: int, cpus: int) -> list[range]:
    """Returns the indices of the environments that each process steps, the training process first.

    Args:
        vectorization: `sync`, `async` or `split`; `auto`, for which no run has chosen a kind, is `sync`.
        num_envs: Number of environments.
        cpus: Number of CPUs; `split` uses one process for each, and larger groups come first.
    """
    if vectorization == "async":
        return [range(0), *(range(index, index + 1) for index in range(num_envs))]
    return divide_equally(num_envs, cpus if vectorization == "split" else 1)


def _make_native(config: TrainConfig) -> NativeVectorEnv:
    def make(spec: EnvSpec, kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
        if config.max_episode_steps is not None:
            kwargs = {**kwargs, "max_episode_steps": config.max_episode_steps}
        maker = make_native if config.vectorization == "native" else EnvPoolVectorEnv
        return maker(spec, config.num_envs, **kwargs)

    envs = construct(config, make)
    try:
        return NativeVectorEnv(config, envs)
    except BaseException:
        close_quietly(config.env_id, [envs], find_secrets(config))
        raise
