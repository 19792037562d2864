"""Runs a flow in this process for the command line, with an embedded Prefect server if none is set up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.runs.stopping import Terminated, interrupt_on_signals
from rl_training.runtime.callbacks import Callback
from rl_training.services.embedded_server import provide_server
from rl_training.services.prefect_environment import prepare_prefect
from rl_training.system.import_pause import pause_garbage_collection

if TYPE_CHECKING:
    from rl_training.api.retraining import Start
    from rl_training.sweeps.sweep_result import SweepResult

Overrides = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True)
class FlowSummary:
    """The result of a flow that trains."""

    values: Mapping[str, Any]
    """The flow's result; see `rl_training.flows.pipeline.summarize`."""

    @property
    def stop_reason(self) -> str:
        """Why training ended; `skipped` if no training was due."""
        return str(self.values.get("stop_reason", "skipped"))

    @property
    def unsent(self) -> str:
        """A message about data that is not in MLflow yet, with what to do; empty if there is none."""
        return str(self.values.get("unsent", ""))

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary for JSON."""
        return dict(self.values)

    def lines(self) -> list[str]:
        """Returns the summary as text."""
        from rl_training.api.summary import format_summary

        if self.values.get("skipped"):
            return [f"skipped: {self.values['skipped']}"]
        lines = format_summary(self.values, resume="flow resume")
        if "start" in self.values:
            lines.insert(1, f"{self.values['reason']}; seed {self.values['seed']}")
        return lines


def run_train_flow(
    config: str | Path | Mapping[str, Any], overrides: Overrides = (), callbacks: Sequence[Callback] = ()
) -> FlowSummary:
    """Runs train-flow in this process.

    Args:
        config: A YAML file, the name of a shipped one, or the settings themselves.
        overrides: A mapping, or texts `dotted.key=value`.
        callbacks: Callbacks of the training, such as a progress display, besides the flow's own.

    Returns:
        The summary; `stop_reason` is `signal` if Ctrl-C or SIGTERM has stopped the run, which can be resumed.

    Raises:
        UserError: The settings, the environment or a server can't be used; nothing was trained.
        RunFailed: Training failed; its newest good checkpoint is kept.
        KeyboardInterrupt: A signal arrived before the run existed.
    """
    with prepare_prefect(), _quiet_prefect():
        from rl_training.flows.train import read_settings, train_flow

        parameters = _to_json(config), _to_json(overrides)
        read_settings(*parameters)  # reports a mistake before a server is started
        return FlowSummary(_run(lambda: train_flow(*parameters), callbacks))


def run_resume_flow(
    source: str | Path,
    overrides: Overrides = (),
    callbacks: Sequence[Callback] = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
) -> FlowSummary:
    """Runs resume-flow in this process; see `run_train_flow`, and `resume_flow` for the arguments."""
    with prepare_prefect(), _quiet_prefect():
        from rl_training.flows.resume import resume_flow

        parameters = str(source), _to_json(overrides), fine_tune, list(allow_modules)
        return FlowSummary(_run(lambda: resume_flow(*parameters), callbacks))


def run_retrain_flow(
    config: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    callbacks: Sequence[Callback] = (),
    *,
    start: Start = "champion",
    min_hours: float = 0.0,
) -> FlowSummary:
    """Runs retrain-flow in this process; see `run_train_flow`, and `retrain_flow` for the arguments."""
    with prepare_prefect(), _quiet_prefect():
        from rl_training.flows.retrain import retrain_flow
        from rl_training.flows.train import read_settings

        parameters = _to_json(config), _to_json(overrides)
        read_settings(*parameters)
        return FlowSummary(_run(lambda: retrain_flow(*parameters, start, min_hours), callbacks))


def run_evaluate_flow(
    source: str | Path,
    overrides: Overrides = (),
    *,
    episodes: int | None = None,
    roll_back: bool = False,
    allow_modules: Collection[str] = (),
) -> dict[str, Any]:
    """Runs evaluate-flow in this process, and returns its result; see `evaluate_flow` for the arguments.

    Raises:
        UserError: The source, the settings or a server can't be used.
        EnvironmentFault: An environment broke its contract.
        KeyboardInterrupt: A signal arrived.
    """
    with prepare_prefect(), _quiet_prefect():
        from rl_training.flows.evaluate import evaluate_flow

        parameters = str(source), episodes, roll_back, _to_json(overrides), list(allow_modules)
        return _run(lambda: evaluate_flow(*parameters))


def run_promote_flow(
    candidate: str | Path,
    overrides: Overrides = (),
    *,
    force: str | None = None,
    allow_modules: Collection[str] = (),
) -> dict[str, Any]:
    """Runs promote-flow in this process, and returns its result; see `run_evaluate_flow` and `promote_flow`."""
    with prepare_prefect(), _quiet_prefect():
        from rl_training.flows.promote import promote_flow

        return _run(lambda: promote_flow(str(candidate), _to_json(overrides), force, list(allow_modules)))


def run_sweep_flow(
    file: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    new: bool = False,
    continue_with: str | None = None,
) -> SweepResult:
    """Runs sweep-flow in this process.

    Args:
        file: A YAML file, the name of a shipped sweep, or the settings themselves.
        overrides: A mapping, or texts `dotted.key=value`.
        new: Whether to begin another sweep even if there is an unfinished one.
        continue_with: The command that continues a stopped sweep, for messages.

    Returns:
        The result; its `finished` is False if Ctrl-C or SIGTERM has stopped the sweep, which can be continued.

    Raises:
        UserError: The settings, the engine or a server can't be used.
        RunFailed: Every trial of the first round failed, or a trial was lost too often.
        KeyboardInterrupt: A signal arrived before the sweep existed.
    """
    with prepare_prefect(), _quiet_prefect():
        from rl_training.flows.sweep import sweep_flow
        from rl_training.flows.sweep_engines.opening import require_engine
        from rl_training.sweeps.loading import load_sweep

        parameters = _to_json(file), _to_json(overrides)
        require_engine(load_sweep(*parameters).settings.engine)  # reports a mistake before a server is started
        sweeps: list[SweepResult] = []
        _run(lambda: sweep_flow(*parameters, new), sweeps=sweeps, continue_with=continue_with)
        return sweeps[-1]


def _to_json(value: Any) -> Any:
    """Converts a parameter to a type that JSON has, as Prefect requires."""
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, str | Path) else list(value)


def _run(
    call: Callable[[], dict[str, Any]],
    callbacks: Sequence[Callback] = (),
    *,
    sweeps: list[SweepResult] | None = None,
    continue_with: str | None = None,
) -> dict[str, Any]:
    # Prefect turns SIGTERM into an exception of its own, and then calls the handler that was installed before.
    from prefect.settings import PREFECT_API_URL

    embedded = PREFECT_API_URL.value() is None
    with interrupt_on_signals() as interruptions, provide_server(_import_training):
        from prefect.exceptions import TerminationSignal

        from rl_training.flows.pipeline import summarize_stopped
        from rl_training.flows.tracked_run import share_with_flow

        with share_with_flow(callbacks, server_ends=embedded, continue_with=continue_with) as context:
            if sweeps is not None:
                context.sweeps = sweeps
            try:
                summary = call()
                interruptions.end()
            except (KeyboardInterrupt, TerminationSignal) as stopped:
                if context.sweeps:
                    interruptions.end()
                    return context.sweeps[-1].to_dict()
                if not context.runs:
                    if isinstance(stopped, TerminationSignal):
                        raise Terminated from stopped
                    raise
                interruptions.end()
                summary = summarize_stopped(context.runs[-1])
            return summary


def _import_training() -> None:
    """Imports the training code while the server starts, because both take seconds."""
    with pause_garbage_collection():
        import rl_training.api.training  # noqa: F401


@contextmanager
def _quiet_prefect() -> Iterator[None]:
    """Keeps Prefect's log lines off the console, which belongs to the caller; the server stores all of them."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with pause_garbage_collection():
        import_module("prefect.main")  # it adds its own handlers to the root logger
    root.handlers[:], root.level = handlers, level
    prefect_logger, propagate = logging.getLogger("prefect"), logging.getLogger("prefect").propagate
    senders = [logging.getLogger(name) for name in ("EventsWorker", "APILogWorker")]  # they warn about unsent items
    levels = [logger.level for logger in senders]
    prefect_logger.propagate = False
    for logger in senders:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        prefect_logger.propagate = propagate
        for logger, level in zip(senders, levels, strict=True):
            logger.setLevel(level)
