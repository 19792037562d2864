"""The command line `rl-training`."""

from rl_training.cli.app import main, run

__all__ = ["main", "run"]
