"""The `retrain-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.retrain.retrain_flow`."""

from rl_training.flows.retrain import retrain_flow

__all__ = ["retrain_flow"]
