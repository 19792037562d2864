"""Making environments from settings: alone, and many together."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.envs.box2d_worlds import with_fresh_world
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import ContractGuard, secrets_of, shown_cause, warnings_hidden
from rl_training.envs.env_lookup import find_spec
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.missing_extras import missing_extra
from rl_training.envs.mujoco_log import log_mujoco_warnings
from rl_training.envs.vector.envpool_env import EnvPoolRows
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.envs.vector.native_vector_env import NativeVectorEnv, make_native
from rl_training.errors import FOREIGN_ERRORS, EnvironmentRefused, error_line
from rl_training.security.secrets import hide, resolve_secrets
from rl_training.system.signal_handlers import put_back

T = TypeVar("T")

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time in each period of how many, of the control group that a container is."""
_REFUSED_WRAPPERS = {
    "NormalizeObservation": "use normalization.observation, which is saved with a checkpoint",
    "NormalizeReward": "use normalization.reward, which is saved with a checkpoint",
    "RecordEpisodeStatistics": "returns and lengths of episodes are counted already",
    "Autoreset": "episodes are reset by the trainer",
    "TimeLimit": "use max_episode_steps",
}


def make_env(config: TrainConfig, env_index: int) -> EpisodeReplay:
    """Makes one environment, neither seeded nor reset.

    From the inside: the environment with its time limit, the wrappers of the settings, `ContractGuard`, and
    `EpisodeReplay`, which has the running episode's return and length.

    Args:
        config: `env_id`, `env_kwargs`, `max_episode_steps` and `wrappers` count.
        env_index: Which of the run's environments this is, for messages.

    Raises:
        EnvironmentRefused: There is no such environment or wrapper, or making it failed; the message has its own text.
        ConfigError: A secret that the arguments refer to is not to be found.
    """
    env = make_bare_env(config)
    try:
        return EpisodeReplay(ContractGuard(env, config.env_id, env_index, secrets_of(config)))
    except BaseException:
        close_quietly(config.env_id, [env], secrets_of(config))
        raise


def make_vector_env(config: TrainConfig) -> MaskedVectorEnv | NativeVectorEnv:
    """Makes `config.num_envs` environments that are stepped together.

    The autoreset mode is DISABLED: rows whose episode ended are reset by `reset(options={"reset_mask": mask})`.

    Raises:
        EnvironmentRefused: As `make_env`, or the environments differ in their spaces, or there is no native one.
    """
    if config.vectorization in NATIVE:
        return _make_native(config)
    return MaskedVectorEnv(
        config, shares(config.vectorization, config.num_envs, usable_cpus()), partial(make_env, config)
    )


def usable_cpus() -> int:
    """Returns how many CPUs this process may use: by its affinity, and by the quota of a container."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # there is none, or it says `max`
        return cpus


def shares(vectorization: str, num_envs: int, cpus: int) -> list[range]:
    """Returns which environments each process steps, first those of the process that trains.

    Args:
        vectorization: `sync`, `async` or `split`.
        num_envs: How many there are.
        cpus: Of which `split` uses all, each process with one; the larger shares come first.
    """
    if vectorization == "async":
        return [range(0), *(range(index, index + 1) for index in range(num_envs))]
    count = 1 if vectorization == "sync" else min(num_envs, cpus)
    bounds = [-(-num_envs * k // count) for k in range(count + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


def make_bare_env(config: TrainConfig) -> gym.Env[Any, Any]:
    """Makes one environment with its time limit and the wrappers of the settings, and nothing of ours.

    Raises:
        EnvironmentRefused: As `make_env`.
        ConfigError: As `make_env`.
    """
    env = _make_single(config)
    try:
        for i, wrapper in enumerate(config.wrappers):
            env = _wrap(config, env, wrapper.name, resolve_secrets(wrapper.kwargs, path=f"wrappers.{i}.kwargs"))
    except BaseException:
        close_quietly(config.env_id, [env], secrets_of(config))
        raise
    return env


def _make_native(config: TrainConfig) -> NativeVectorEnv:
    def make(spec: EnvSpec, kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
        if config.max_episode_steps is not None:
            kwargs = {**kwargs, "max_episode_steps": config.max_episode_steps}
        maker = make_native if config.vectorization == "native" else EnvPoolRows
        return maker(spec, config.num_envs, **kwargs)

    envs = _construct(config, make)
    try:
        return NativeVectorEnv(config.env_id, envs, secrets_of(config))
    except BaseException:
        close_quietly(config.env_id, [envs], secrets_of(config))
        raise


def _make_single(config: TrainConfig) -> gym.Env[Any, Any]:
    def make(spec: EnvSpec, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
        # Gymnasium's checker warns where ours reports, and would run in every step of training.
        env = gym.make(spec, max_episode_steps=config.max_episode_steps, disable_env_checker=True, **kwargs)
        return with_fresh_world(env)

    return _construct(config, make)


def _construct(config: TrainConfig, make: Callable[[EnvSpec, dict[str, Any]], T]) -> T:
    spec = find_spec(config.env_id)
    kwargs = resolve_secrets(config.env_kwargs)  # here and no earlier: what is resolved is in no settings
    try:
        log_mujoco_warnings(spec)
        with warnings_hidden(secrets_of(config)):
            return make(spec, kwargs)
    except EnvironmentRefused:
        raise
    except FOREIGN_ERRORS as error:
        if install := missing_extra(error):
            raise EnvironmentRefused(f"environment {config.env_id!r}: {install}") from None
        # Gymnasium adds the arguments, which may hold secrets, to a TypeError; the original has the text alone.
        original = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        reason = hide(error_line(original), secrets_of(config))
        raise EnvironmentRefused(f"environment {config.env_id!r} could not be made: {reason}") from None
    finally:
        put_back(config.env_id)


def _wrap(config: TrainConfig, env: gym.Env[Any, Any], name: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        with warnings_hidden(secrets_of(config)):
            wrapped: gym.Env[Any, Any] = _find_wrapper(name)(env, **kwargs)  # type: ignore[call-arg]
    except EnvironmentRefused:
        raise
    except FOREIGN_ERRORS as error:
        if install := missing_extra(error):
            raise EnvironmentRefused(f"wrapper {name!r}: {install}") from None
        secrets = secrets_of(config)
        raise EnvironmentRefused(
            f"wrapper {name!r} does not fit environment {config.env_id!r}: {hide(error_line(error), secrets)}"
        ) from shown_cause(error, secrets)
    return wrapped


def _find_wrapper(name: str) -> type[gym.Env[Any, Any]]:
    """The wrapper's class. The name may come from a stranger's checkpoint, so nothing else that has it is called."""
    if name in _REFUSED_WRAPPERS:
        raise EnvironmentRefused(f"wrapper {name!r} is not for the settings: {_REFUSED_WRAPPERS[name]}")
    module_name, _, class_name = name.rpartition(":")
    module_name = module_name or "gymnasium.wrappers"
    try:
        module = importlib.import_module(module_name)
        wrapper = getattr(module, class_name)
    except ImportError as error:
        raise EnvironmentRefused(f"wrapper {name!r}: {error}") from error
    except AttributeError:
        nearest = get_close_matches(class_name, dir(module), n=1)
        suggestion = f"; did you mean {nearest[0]}?" if nearest else ""
        raise EnvironmentRefused(f"wrapper {name!r}: {module_name} has no {class_name!r}{suggestion}") from None
    if not (isinstance(wrapper, type) and issubclass(wrapper, gym.Env)):
        raise EnvironmentRefused(f"wrapper {name!r} is no class of wrappers; expected a subclass of gymnasium.Wrapper")
    return wrapper
