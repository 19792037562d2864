"""Validates an environment before training, to find everything that would fail or mislead later."""

from rl_training.envs.validation.validate import require_valid, validate_env

__all__ = ["require_valid", "validate_env"]
