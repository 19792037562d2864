"""`retrain-flow`, as `prefect.yaml` deploys it from the installed package."""

from rl_training.flows.retrain import retrain_flow

__all__ = ["retrain_flow"]
