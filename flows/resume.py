"""`resume-flow`, as `prefect.yaml` deploys it from the installed package."""

from rl_training.flows.resume import resume_flow

__all__ = ["resume_flow"]
