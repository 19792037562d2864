"""Tiny environments for tests, one oddity each, registered on import: `gymnasium.make("case_envs:NanObs-v0")`.

Unless its class says otherwise, an environment has four float features that tell the step, two actions of which 1 is
worth a reward of 1, and ends (terminated) after ten steps: best return 10.0.
"""

from __future__ import annotations

import gymnasium as gym

from case_envs import actions, goals, interface, masks, observations, outcomes, plain, processes, randomness, recall
from case_envs import native as native
from case_envs.plain import Plain

for module in (actions, goals, interface, masks, observations, outcomes, plain, processes, randomness, recall):
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, Plain) and f"{name}-v0" not in gym.registry:
            gym.register(f"{name}-v0", entry_point=f"{kind.__module__}:{name}")
