"""The `sweep-flow` of the installed package; `prefect.yaml` deploys `rl_training.flows.sweep.sweep_flow`."""

from rl_training.flows.sweep import sweep_flow

__all__ = ["sweep_flow"]
