"""The `evaluate-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.evaluate.evaluate_flow`."""

from rl_training.flows.evaluate import evaluate_flow

__all__ = ["evaluate_flow"]
