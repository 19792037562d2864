"""Runs a flow for the command line: a Prefect server if need be, few lines on the console, and a summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.runs.stopping import Terminated, interrupted_by_signals
from rl_training.runtime.callbacks import Callback
from rl_training.services.embedded_server import before_import, embedded_server

if TYPE_CHECKING:
    from rl_training.api.retraining import Start

Overrides = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True)
class FlowSummary:
    """What a flow run came to."""

    values: Mapping[str, Any]
    """See `rl_training.flows.pipeline.summarize`."""

    @property
    def stop_reason(self) -> str:
        """Why training ended; `skipped` where it was not due."""
        return str(self.values.get("stop_reason", "skipped"))

    @property
    def unsent(self) -> str:
        """What is not in MLflow, and what to do; empty where everything is there."""
        return str(self.values.get("unsent", ""))

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return dict(self.values)

    def lines(self) -> list[str]:
        """Returns it for people."""
        from rl_training.api.summary import summary_lines

        if self.values.get("skipped"):
            return [f"skipped: {self.values['skipped']}"]
        lines = summary_lines(self.values, resume="flow resume")
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
        callbacks: See training besides the flow's own, a progress display for one.

    Returns:
        What it came to; `stop_reason` is `signal` where Ctrl-C or SIGTERM has stopped it, resumable.

    Raises:
        UserError: The settings, the environment or a server can't be used; nothing was trained.
        RunFailed: The run broke; its last good checkpoint is kept.
        KeyboardInterrupt: A signal came before there was a run.
    """
    with before_import(), _quiet_prefect():
        from rl_training.flows.train import read_settings, train_flow

        parameters = _plain(config), _plain(overrides)
        read_settings(*parameters)  # a mistake in them is said before a server is started
        return FlowSummary(_run(lambda: train_flow(*parameters), callbacks))


def run_resume_flow(
    source: str | Path,
    overrides: Overrides = (),
    callbacks: Sequence[Callback] = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
) -> FlowSummary:
    """Runs resume-flow in this process; see `run_train_flow`.

    Args:
        source: An MLflow run id, `runs:/ID`, `models:/NAME@ALIAS`, or the directory of a run or checkpoint.
        overrides: Settings that change.
        callbacks: See training besides the flow's own.
        fine_tune: Begin a new run with the checkpoint's weights alone.
        allow_modules: Modules that a received run may name.
    """
    with before_import(), _quiet_prefect():
        from rl_training.flows.resume import resume_flow

        parameters = str(source), _plain(overrides), fine_tune, list(allow_modules)
        return FlowSummary(_run(lambda: resume_flow(*parameters), callbacks))


def run_retrain_flow(
    config: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    callbacks: Sequence[Callback] = (),
    *,
    start: Start = "champion",
    min_hours: float = 0.0,
) -> FlowSummary:
    """Runs retrain-flow in this process; see `run_train_flow`.

    Args:
        config: A YAML file, the name of a shipped one, or the settings themselves.
        overrides: A mapping, or texts `dotted.key=value`.
        callbacks: See training besides the flow's own.
        start: Whose weights it starts with: the champion's, or new ones.
        min_hours: Age of the champion before which nothing is due.
    """
    with before_import(), _quiet_prefect():
        from rl_training.flows.retrain import retrain_flow
        from rl_training.flows.train import read_settings

        parameters = _plain(config), _plain(overrides)
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
    """Runs evaluate-flow in this process, and returns its result.

    Args:
        source: As a rule `models:/NAME@champion`.
        overrides: Settings of `promotion.*`, `evaluation.*` and `env_kwargs.*` that differ.
        episodes: How many, in place of `promotion.episodes`.
        roll_back: Whether a champion that has dropped is rolled back.
        allow_modules: Modules that a received policy may name.

    Raises:
        UserError: The source, the settings or a server can't be used.
        EnvironmentFault: An environment broke its contract.
        KeyboardInterrupt: A signal came.
    """
    with before_import(), _quiet_prefect():
        from rl_training.flows.evaluate import evaluate_flow

        parameters = str(source), episodes, roll_back, _plain(overrides), list(allow_modules)
        return _run(lambda: evaluate_flow(*parameters))


def run_promote_flow(
    candidate: str | Path,
    overrides: Overrides = (),
    *,
    force: str | None = None,
    allow_modules: Collection[str] = (),
) -> dict[str, Any]:
    """Runs promote-flow in this process, and returns its result; see `run_evaluate_flow`.

    Args:
        candidate: A run, a checkpoint's directory, or a registered version.
        overrides: Settings of `promotion.*` and `evaluation.*` that differ.
        force: A reason to make it champion whatever the gate finds.
        allow_modules: Modules that a received candidate may name.
    """
    with before_import(), _quiet_prefect():
        from rl_training.flows.promote import promote_flow

        return _run(lambda: promote_flow(str(candidate), _plain(overrides), force, list(allow_modules)))


def _plain(value: Any) -> Any:
    """A flow's parameters are JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, str | Path) else list(value)


def _run(call: Callable[[], dict[str, Any]], callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    # Prefect turns SIGTERM into an exception of its own, and hands the signal on to whom it would have come before.
    with interrupted_by_signals() as interruptions, embedded_server(_import_what_runs_need):
        from prefect.exceptions import TerminationSignal

        from rl_training.flows.pipeline import summarize_stopped
        from rl_training.flows.training_run import calling

        with calling(callbacks) as caller:
            try:
                summary = call()
                interruptions.end()
            except (KeyboardInterrupt, TerminationSignal) as stopped:
                if not caller.opened:
                    if isinstance(stopped, TerminationSignal):
                        raise Terminated from stopped
                    raise
                interruptions.end()
                summary = summarize_stopped(caller.opened[-1])
            return summary


def _import_what_runs_need() -> None:
    """Imports while the server starts: both take seconds."""
    import rl_training.api.training  # noqa: F401


@contextmanager
def _quiet_prefect() -> Iterator[None]:
    """Keeps Prefect's lines off the console, where a flow's caller writes its own; the server has them all."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    import_module("prefect.main")  # which puts handlers of its own on the root logger
    root.handlers[:], root.level = handlers, level
    prefect_logger, propagate = logging.getLogger("prefect"), logging.getLogger("prefect").propagate
    senders = [logging.getLogger(name) for name in ("EventsWorker", "APILogWorker")]  # warn that they have work left
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
