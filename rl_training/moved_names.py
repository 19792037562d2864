"""The old paths of modules and names that have moved; each works for one more version, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "rl_training.algorithms.sac": "rl_training.algorithms.continuous.sac",
    "rl_training.config.dqn": "rl_training.config.algorithms.dqn",
    "rl_training.config.ppo": "rl_training.config.algorithms.ppo",
    "rl_training.config.sac": "rl_training.config.algorithms.sac",
    "rl_training.envs.training": "rl_training.envs.training_envs",
    "rl_training.runtime.dqn_trainer": "rl_training.runtime.trainers.dqn_trainer",
    "rl_training.runtime.off_policy_trainer": "rl_training.runtime.trainers.off_policy_trainer",
    "rl_training.runtime.ppo_trainer": "rl_training.runtime.trainers.ppo_trainer",
    "rl_training.runtime.sac_trainer": "rl_training.runtime.trainers.sac_trainer",
    "rl_training.runtime.setup": "rl_training.runtime.trainer_factory",
    "rl_training.runtime.stopping": "rl_training.runs.stopping",
    "rl_training.tracking.store": "rl_training.tracking.mlflow_store",
}
"""The new path of each module that documentation or examples of version 0.1 imported."""

NAMES = {
    "rl_training.envs.factory.shares": "rl_training.envs.factory.divide_into_groups",
    "rl_training.runtime.network_trainer.check_trainable": "rl_training.runtime.trainer_factory.check_trainable",
    "rl_training.tracking.pyfunc.signature_of": "rl_training.tracking.pyfunc.make_signature",
}
"""The new path of each name that has moved out of a public module, or was renamed in it."""


def find_old_names(module: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module some of whose names have moved."""

    def find(name: str) -> Any:
        old = f"{module}.{name}"
        if old not in NAMES:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new_name = NAMES[old].rpartition(".")
        _warn(old, NAMES[old])
        return getattr(import_module(home), new_name)

    return find


def adopt_old_methods(trainer: type[Any]) -> None:
    """Makes the size check of a kind of trainer work that defines it by its old name."""
    if "require_held" in vars(trainer):
        warnings.warn(f"{trainer.__name__}.require_held is now require_size", DeprecationWarning, stacklevel=3)
        trainer.require_size = trainer.require_held


class OldPathFinder(MetaPathFinder, Loader):
    """Imports the module of the new path when an old path is imported; both are then the same module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of an old path."""
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of the new path in the place of the old one."""
        old = module.__name__
        _warn(old, MODULES[old])
        sys.modules[old] = import_module(MODULES[old])


def install() -> None:
    """Makes the old paths importable."""
    if not any(isinstance(finder, OldPathFinder) for finder in sys.meta_path):
        sys.meta_path.append(OldPathFinder())


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"{old} was renamed to {new}; use the new name, because the old one will be removed in the next version",
        DeprecationWarning,
        stacklevel=3,
    )
