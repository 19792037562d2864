"""The methods that choose the points of a sweep, by their names in its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.grid import GridMethod
from rl_training.sweeps.methods.halving import HalvingMethod
from rl_training.sweeps.methods.population import PopulationMethod
from rl_training.sweeps.methods.random_search import RandomMethod
from rl_training.sweeps.methods.tpe import TPEMethod
from rl_training.sweeps.plan import Method
from rl_training.sweeps.sweep_config import MethodName

METHODS: Mapping[MethodName, Callable[[Sweep], Method]] = {
    "grid": GridMethod,
    "random": RandomMethod,
    "tpe": TPEMethod,
    "halving": HalvingMethod,
    "population": PopulationMethod,
}


def make_method(sweep: Sweep) -> Method:
    """Returns the method that a sweep's settings name.

    Raises:
        ConfigError: The space has no valid point, or a package that the method needs is not installed.
    """
    return METHODS[sweep.settings.method.name](sweep)
