"""Finds an environment by its id: imports plug-in modules, and explains in one line why an id is unknown."""

from __future__ import annotations

import importlib
import importlib.util
from difflib import get_close_matches
from importlib.metadata import entry_points

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, parse_env_id

from rl_training.config.resume_rules import SESSION
from rl_training.envs.missing_extras import MODULE_OF_NAMESPACE, explain_missing_extra
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused, error_line
from rl_training.system.paths import make_paths_absolute


def find_spec(env_id: str) -> EnvSpec:
    """Returns the registered specification of `Env-v0`, `namespace/Env-v0` or `module:Env-v0`.

    A module before the colon is imported first, because plug-ins register their ids on import, in each process.

    Raises:
        EnvironmentRefused: The module, namespace or id does not exist, or the module fails on import.
    """
    make_paths_absolute()
    module, _, name = env_id.rpartition(":")
    if module:
        _import_plugin(env_id, module)
    spec = gym.registry.get(name)
    if spec is None:
        raise EnvironmentRefused(_explain_unknown(env_id, module, name))
    return spec


def find_plugin_module(env_id: str) -> str | None:
    """Returns the package of an environment that is registered in this process but would not be in another one.

    Returns None if the id names its module, or if `import gymnasium` alone registers the id.
    """
    spec = gym.registry.get(env_id)
    if spec is None or spec.entry_point is None:
        return None
    source = spec.entry_point if isinstance(spec.entry_point, str) else spec.entry_point.__module__
    package = source.partition(":")[0].partition(".")[0]
    if package == "gymnasium":
        return None
    everywhere = {entry.module.partition(".")[0] for entry in entry_points(group="gymnasium.envs")}
    return None if package in everywhere else package


def _import_plugin(env_id: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except USER_CODE_ERRORS as error:
        raise EnvironmentRefused(f"environment {env_id!r}: {_explain_import_failure(module, error)}") from error


def _explain_import_failure(module: str, error: BaseException) -> str:
    if install := explain_missing_extra(error):
        return install
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or str(error)
        if missing == module or module.startswith(f"{missing}."):
            return f"no module named {missing!r}; install it or put its folder on PYTHONPATH"
        return f"module {module!r} failed on import: missing package {missing!r}; install it"
    return f"module {module!r} failed on import: {error_line(error)}"


def _explain_unknown(env_id: str, module: str, name: str) -> str:
    try:
        namespace, base, _version = parse_env_id(name)
    except gym.error.Error:
        return f"environment {env_id!r}: {name!r} is not an id; expected Name-v0, namespace/Name-v0 or module:Name-v0"
    if namespace is not None and not any(spec.namespace == namespace for spec in gym.registry.values()):
        source = module or MODULE_OF_NAMESPACE.get(namespace, "MODULE")
        hint = f"write the module that registers it before the id: {source}:{name}"
        if not module and _is_importable(namespace):
            hint = f"its module must be named: {namespace}:{name}"
        return f"environment {env_id!r}: unknown namespace {namespace!r}; {hint}"
    same_base = [key for key, spec in gym.registry.items() if spec.name.lower() == base.lower()]
    same_base.sort(key=lambda key: gym.registry[key].namespace == namespace)
    nearest = same_base[-1:] or get_close_matches(name, list(gym.registry), n=1, cutoff=0.5)
    prefix = f"{module}:" if module else ""
    suggestion = f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
    if not module and not nearest:
        suggestion = "; an id of a plug-in needs its module: MODULE:" + name
    if module == SESSION:
        return (
            f"environment {env_id!r}: {SESSION} is the notebook or script that registered it, which another process "
            f"does not see; put the environment into a module, such as my_module.py in a folder on PYTHONPATH, and "
            f"set env_id to my_module:{name}"
        )
    registered = f" (module {module!r} was imported and does not register it)" if module else ""
    return f"environment {env_id!r}: unknown id {name!r}{registered}{suggestion}"


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
