from rl_training.api.algorithms import *  # noqa: F403
from rl_training.api.algorithms import __all__ as __all__
