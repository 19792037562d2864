"""The `resume-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.resume.resume_flow`."""

from rl_training.flows.resume import resume_flow

__all__ = ["resume_flow"]
