"""The `promote-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.promote.promote_flow`."""

from rl_training.flows.promote import promote_flow

__all__ = ["promote_flow"]
