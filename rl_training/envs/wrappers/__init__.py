"""Wrappers that settings may name without a module, beside those of `gymnasium.wrappers`."""

from rl_training.envs.wrappers.atari_lives import EpisodicLife as EpisodicLife
from rl_training.envs.wrappers.atari_lives import FireReset as FireReset
from rl_training.envs.wrappers.hide_velocities import HideVelocities as HideVelocities
