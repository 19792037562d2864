"""`evaluate-flow`, as `prefect.yaml` deploys it from the installed package."""

from rl_training.flows.evaluate import evaluate_flow

__all__ = ["evaluate_flow"]
