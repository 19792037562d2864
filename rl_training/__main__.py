"""Runs the command line as `python -m rl_training`."""

from rl_training.cli.app import main

main()
