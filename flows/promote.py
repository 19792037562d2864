"""`promote-flow`, as `prefect.yaml` deploys it from the installed package."""

from rl_training.flows.promote import promote_flow

__all__ = ["promote_flow"]
