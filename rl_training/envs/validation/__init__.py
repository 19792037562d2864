"""Validation: everything about an environment that would fail or mislead later is found before training begins."""

from rl_training.envs.validation.validate import require_valid, validate_env

__all__ = ["require_valid", "validate_env"]
