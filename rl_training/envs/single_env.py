"""Makes one environment from the settings: plug-in, arguments, wrappers, and the guards that every run needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_training.config.settings import TrainConfig
from rl_training.envs import wrappers as own_wrappers
from rl_training.envs.box2d_worlds import wrap_with_fresh_world
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import ContractGuard, find_secrets, hide_secrets_in_warnings, redact_cause
from rl_training.envs.contract.mask_guard import MaskGuard
from rl_training.envs.env_lookup import find_spec
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.episodes.raw_return import RawReturn
from rl_training.envs.missing_extras import explain_missing_extra
from rl_training.envs.mujoco_log import log_mujoco_warnings
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused, error_line
from rl_training.security.secrets import hide, resolve_secrets
from rl_training.system.headless_rendering import choose_renderer
from rl_training.system.signal_handlers import restore_handlers

T = TypeVar("T")

_REFUSED_WRAPPERS = {
    "NormalizeObservation": "use normalization.observation, which is saved with a checkpoint",
    "NormalizeReward": "use normalization.reward, which is saved with a checkpoint",
    "RecordEpisodeStatistics": "returns and lengths of episodes are counted already",
    "Autoreset": "episodes are reset by the trainer",
    "TimeLimit": "use max_episode_steps",
}


def make_env(config: TrainConfig, env_index: int) -> EpisodeReplay:
    """Makes one environment, neither seeded nor reset.

    From the inside out, the layers are the environment with its time limit, `RawReturn` if there are wrappers,
    `wrappers` and `training_wrappers` of the settings, `MaskGuard` if actions are masked, `ContractGuard`, and
    `EpisodeReplay`, which holds the return and length of the running episode.

    Args:
        config: The settings, of which those of the environment and its wrappers are used. An environment for
            evaluation is made from `config.for_evaluation()`, which has no `training_wrappers`.
        env_index: Index of the environment within the run, for messages.

    Raises:
        EnvironmentRefused: The environment or a wrapper does not exist, or could not be made; the message quotes the
            original error.
        ConfigError: The arguments refer to a secret that can't be found.
    """
    env = make_bare_env(config)
    try:
        guarded = ContractGuard(env, config.env_id, env_index, find_secrets(config))
        return EpisodeReplay(guarded, config.env_id, config.reset_options)
    except BaseException:
        close_quietly(config.env_id, [env], find_secrets(config))
        raise


def make_bare_env(config: TrainConfig) -> gym.Env[Any, Any]:
    """Makes one environment with its time limit, the wrappers of the settings, and the guard of its action masks.

    Raises:
        EnvironmentRefused: As `make_env`.
        ConfigError: As `make_env`.
    """

    def make(spec: EnvSpec, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
        # Gymnasium's checker only warns about faults that validation reports, and would run in every training step.
        env = gym.make(spec, max_episode_steps=config.max_episode_steps, disable_env_checker=True, **kwargs)
        return wrap_with_fresh_world(env)

    env = construct(config, make)
    try:
        if config.wrappers or config.training_wrappers:
            env = RawReturn(env)
        for field in ("wrappers", "training_wrappers"):
            for i, wrapper in enumerate(getattr(config, field)):
                kwargs = resolve_secrets(wrapper.kwargs, path=f"{field}.{i}.kwargs")
                env = _wrap(config, env, wrapper.name, kwargs)
        if config.mask_key is not None:
            env = MaskGuard(env, config)
    except BaseException:
        close_quietly(config.env_id, [env], find_secrets(config))
        raise
    return env


def construct(config: TrainConfig, make: Callable[[EnvSpec, dict[str, Any]], T]) -> T:
    """Returns `make(spec, kwargs)` for the environment of the settings, with secrets resolved in `kwargs`.

    Raises:
        EnvironmentRefused: The environment does not exist, or `make` failed; the message hides secrets.
        ConfigError: The arguments refer to a secret that can't be found.
    """
    spec = find_spec(config.env_id)
    kwargs = resolve_secrets(config.env_kwargs)  # resolved as late as possible, so that no settings hold a secret
    if kwargs.get("render_mode") is not None:
        choose_renderer()  # before the next line imports MuJoCo
    try:
        log_mujoco_warnings(spec)
        with hide_secrets_in_warnings(find_secrets(config)):
            return make(spec, kwargs)
    except EnvironmentRefused:
        raise
    except USER_CODE_ERRORS as error:
        if install := explain_missing_extra(error):
            raise EnvironmentRefused(f"environment {config.env_id!r}: {install}") from None
        # Gymnasium appends the arguments, which may hold secrets, to a TypeError; its cause has the plain text.
        original = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        reason = hide(error_line(original), find_secrets(config))
        raise EnvironmentRefused(f"environment {config.env_id!r} could not be made: {reason}") from None
    finally:
        restore_handlers(config.env_id)


def _wrap(config: TrainConfig, env: gym.Env[Any, Any], name: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        with hide_secrets_in_warnings(find_secrets(config)):
            wrapped: gym.Env[Any, Any] = _find_wrapper(name)(env, **kwargs)  # type: ignore[call-arg]
    except EnvironmentRefused:
        raise
    except USER_CODE_ERRORS as error:
        if install := explain_missing_extra(error):
            raise EnvironmentRefused(f"wrapper {name!r}: {install}") from None
        secrets = find_secrets(config)
        raise EnvironmentRefused(
            f"wrapper {name!r} does not fit environment {config.env_id!r}: {hide(error_line(error), secrets)}"
        ) from redact_cause(error, secrets)
    return wrapped


def _find_wrapper(name: str) -> type[gym.Env[Any, Any]]:
    """Returns the class of a wrapper.

    The name may come from an untrusted checkpoint, so an object that is not a class of wrappers is never called.
    """
    if name in _REFUSED_WRAPPERS:
        raise EnvironmentRefused(f"wrapper {name!r} is not for the settings: {_REFUSED_WRAPPERS[name]}")
    module_name, _, class_name = name.rpartition(":")
    if not module_name and hasattr(own_wrappers, class_name):
        module_name = own_wrappers.__name__
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
        raise EnvironmentRefused(
            f"wrapper {name!r} is not a class of wrappers; expected a subclass of gymnasium.Wrapper"
        )
    return wrapper
