"""`python -m rl_training` is the command line."""

from rl_training.cli.app import main

main()
