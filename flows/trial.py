"""The `trial-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.trial.trial_flow`."""

from rl_training.flows.trial import trial_flow

__all__ = ["trial_flow"]
