"""`train-flow`, as `prefect.yaml` deploys it from the installed package."""

from rl_training.flows.train import train_flow

__all__ = ["train_flow"]
