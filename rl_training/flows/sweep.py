"""`sweep-flow`: searches for better settings, with trials on the engine that the sweep's settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.runtime import flow_run

from rl_training.flows.artifacts_and_events import emit_end, publish_run_link
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.from_server.deployment_overrides import merge_stored_overrides
from rl_training.flows.from_server.missed_schedules import find_skip_reason, skip
from rl_training.flows.supervised_training import supervise
from rl_training.flows.sweep_engines.opening import open_engine
from rl_training.flows.tracked_run import get_caller_context
from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.loading import Sweep, load_sweep

if TYPE_CHECKING:
    from rl_training.sweeps.sweep_result import SweepResult


@flow(name="sweep-flow", on_completion=[emit_end])
def sweep_flow(
    file: str | dict[str, Any], overrides: dict[str, Any] | list[str] | None = None, new: bool = False
) -> dict[str, Any]:
    """Runs a sweep, or continues the unfinished one with the same settings.

    A retry of the flow run continues its sweep, and so does another flow run with the same parameters. A cancelled flow
    run saves its trials.

    Args:
        file: A YAML file, the name of a shipped sweep such as `ppo_cartpole`, or the settings themselves.
        overrides: Changes to the sweep's settings, with nested or dotted keys, as a mapping or a list of `key=value`
            texts: `{"engine": "ray"}`.
        new: Whether to begin another sweep even if there is an unfinished one. A retry ignores it.

    Returns:
        The result, as `rl-training sweep --json` prints it.

    Raises:
        AlreadyTraining: Another process runs the sweep.
        ConfigError: The settings are not valid (one line for each fault), or a package for the engine is missing;
            nothing was created, trained or logged.
        RunFailed: Every trial of the first round failed, or a trial was lost too often.
        UserError: A cluster, the study database or MLflow can't be used.
    """
    with prepare_flow_process():
        if (reason := find_skip_reason()) is not None:
            return skip(reason)
        sweep = load_sweep(file, merge_stored_overrides(overrides))
        return run_sweep_in_flow(sweep, new=new and (flow_run.run_count or 1) <= 1).to_dict()


def run_sweep_in_flow(sweep: Sweep, *, new: bool = False) -> SweepResult:
    """Runs a sweep in a helper thread of this flow run; a cancel lets its trials save.

    Args:
        sweep: The sweep.
        new: Whether to begin another sweep even if there is an unfinished one.
    """
    from rl_training.sweeps.running import run_sweep

    stop, caller = StopFlag(), get_caller_context()

    def work() -> SweepResult:
        result = run_sweep(sweep, open_engine(sweep.settings), new=new, stop=stop, continue_with=caller.continue_with)
        caller.sweeps.append(result)  # before an interrupt is raised again, so that the caller can show it
        return result

    result = supervise(work, stop=stop)
    publish_run_link(result.page)
    return result
