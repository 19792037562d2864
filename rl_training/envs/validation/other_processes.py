"""Finds names in the settings that only this process knows, such as those of a notebook."""

from __future__ import annotations

from rl_training.config.named_modules import list_modules
from rl_training.config.resume_rules import SESSION
from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.envs.contract.step_contract import Breach, Severity
from rl_training.envs.env_lookup import find_plugin_module
from rl_training.envs.factory import divide_into_groups, usable_cpus


def check_other_processes(config: TrainConfig) -> list[Breach]:
    """Returns a breach for each name that another process does not know.

    The breach is fatal if worker processes make the environments. Otherwise the run works, but only this process can
    resume and judge it.
    """
    modules = {key: module for key, module in list_modules(config).items() if module == SESSION}
    for key, env_id in (("env_id", config.env_id), ("evaluation.env_id", config.evaluation.env_id)):
        if env_id is not None and (module := find_plugin_module(env_id)) is not None:
            modules[key] = module
    return [_describe(config, key, module) for key, module in modules.items()]


def _describe(config: TrainConfig, key: str, module: str) -> Breach:
    name = _get_text(config, key).rpartition(":")[2]
    if module == SESSION:
        message = (
            f"{key}: {name} is defined in this session ({SESSION}) alone, so another process can't resume, evaluate or "
            f"promote the run: put it into a module, such as my_module.py in a folder on PYTHONPATH, and write "
            f"my_module:{name}"
        )
    else:
        message = (
            f"{key} names no module, so another process (a worker, a resume, a flow) does not know {name}: write "
            f"{module}:{name}, or put the code that registers it into a module and write MODULE:{name}"
        )
    severity: Severity = "warning"
    if key.startswith(("env_id", "wrappers", "training_wrappers")) and _has_workers(config):
        severity = "fatal"
        message += f"; until then set vectorization: sync, because {config.vectorization} makes it in worker processes"
    return Breach(severity, "no-module", message, subject=key)


def _get_text(config: TrainConfig, key: str) -> str:
    value = config
    for part in key.split("."):
        value = value[int(part)] if part.isdecimal() else getattr(value, part)  # type: ignore[index]
    return str(value)


def _has_workers(config: TrainConfig) -> bool:
    if config.vectorization in NATIVE:
        return False
    return config.vectorization == "ray" or any(
        divide_into_groups(config.vectorization, config.num_envs, usable_cpus())[1:]
    )
