"""The `train-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.train.train_flow`."""

from rl_training.flows.train import train_flow

__all__ = ["train_flow"]
