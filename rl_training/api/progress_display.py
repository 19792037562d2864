"""Progress of training: a bar on a terminal or in a notebook, otherwise plain lines on stderr.

Rich is imported for a bar alone.
"""

from __future__ import annotations

import os
import sys
import time
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_training.runtime.callbacks import Callback, TrainerState

if TYPE_CHECKING:
    from rich.console import Console

REDRAWS_A_SECOND = 4
PLAIN_LINES = 10
"""The number of lines that a run prints without a terminal, besides its evaluations."""


_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Environment variables that make Rich treat a stream as a terminal."""


def can_draw() -> bool:
    """Returns whether a progress bar can be drawn: stderr is a terminal, or this is a notebook."""
    console = _open_console()
    return console is not None and (console.is_terminal or console.is_jupyter)


def make_progress() -> Callback:
    """Returns a progress bar if one can be drawn, or else plain progress lines."""
    console = _open_console()
    if console is not None and console.is_jupyter:
        return NotebookBar()
    return ProgressBar(console) if console is not None and console.is_terminal else ProgressLines()


def _open_console() -> Console | None:
    """Returns Rich's view of stderr, or None if it is certain that no bar can be drawn there."""
    forced = any(name in os.environ for name in _TERMINAL_VARIABLES)
    if not (forced or "IPython" in sys.modules or sys.stderr.isatty()):
        return None
    from rich.console import Console

    return Console(stderr=True)


class ProgressLines(Callback):
    """Prints a line after each tenth of the run and after each evaluation."""

    def __init__(self) -> None:
        self._printed = 0

    def on_update_end(self, state: TrainerState) -> None:
        """Prints the progress after each tenth of the run."""
        tenth = PLAIN_LINES * state.num_timesteps // state.config.total_timesteps
        if state.metrics and tenth > self._printed:
            self._printed = tenth
            print(_format_progress(state), file=sys.stderr, flush=True)

    def on_eval_end(self, state: TrainerState) -> None:
        """Prints the evaluation."""
        print(_format_evaluation(state), file=sys.stderr, flush=True)


class ProgressBar(Callback):
    """Draws a progress bar on a terminal, and prints a line above it for each evaluation."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        # The training thread redraws the bar, because a separate refresh thread would interrupt training.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("training", total=None, note="")
        self._next_redraw = 0.0

    def on_train_start(self, state: TrainerState) -> None:
        """Draws the empty bar."""
        self._progress.update(self._task, total=state.config.total_timesteps, completed=state.num_timesteps)
        self._progress.start()

    def on_update_end(self, state: TrainerState) -> None:
        """Updates the bar."""
        if state.metrics:
            self._progress.update(self._task, note=_format_metrics(state))
        self._redraw(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Updates the bar."""
        self._redraw(state)

    def on_eval_end(self, state: TrainerState) -> None:
        """Prints a line above the bar."""
        self._progress.console.print(_format_evaluation(state), highlight=False)

    def on_train_end(self, state: TrainerState) -> None:
        """Stops updating the bar."""
        self._progress.update(self._task, completed=state.num_timesteps)
        self._progress.stop()

    def _redraw(self, state: TrainerState) -> None:
        now = time.monotonic()
        if now >= self._next_redraw:
            self._next_redraw = now + 1 / REDRAWS_A_SECOND
            self._progress.update(self._task, completed=state.num_timesteps)
            self._progress.refresh()


class NotebookBar(Callback):
    """Draws a progress bar below a notebook's cell, with the newest evaluation.

    Rich draws bars in notebooks with ipywidgets alone. This one is HTML that each update replaces, so a saved notebook
    shows it too.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._line = self._note = self._evaluation = ""
        self._done, self._total = 0, 1
        self._next_redraw = 0.0

    def on_train_start(self, state: TrainerState) -> None:
        """Draws the bar."""
        display = import_module("IPython.display").display  # which a notebook has, and this package does not need

        self._read(state)
        self._handle = display(self, display_id=True)

    def on_update_end(self, state: TrainerState) -> None:
        """Updates the bar."""
        if state.metrics:
            self._note = _format_metrics(state)
        self._redraw(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Updates the bar."""
        self._redraw(state)

    def on_eval_end(self, state: TrainerState) -> None:
        """Shows the evaluation."""
        self._evaluation = _format_evaluation(state)
        self._redraw(state)

    def on_train_end(self, state: TrainerState) -> None:
        """Draws the bar for the last time."""
        self._next_redraw = 0.0
        self._redraw(state)

    def _redraw(self, state: TrainerState) -> None:
        now = time.monotonic()
        if self._handle is not None and now >= self._next_redraw:
            self._next_redraw = now + 1 / REDRAWS_A_SECOND
            self._read(state)
            self._handle.update(self)

    def _read(self, state: TrainerState) -> None:
        self._done, self._total = state.num_timesteps, state.config.total_timesteps
        self._line = f"step {self._done:,} of {self._total:,}" + (f": {self._note}" if self._note else "")

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self._line, self._evaluation]))

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self._total}" value="{self._done}"></progress>'
        return "<br>".join(filter(None, [f"{bar} {escape(self._line)}", escape(self._evaluation)]))


def _format_progress(state: TrainerState) -> str:
    return f"step {state.num_timesteps:,} of {state.config.total_timesteps:,}: {_format_metrics(state)}"


def _format_metrics(state: TrainerState) -> str:
    parts = []
    if (episode_return := state.metrics.get("rollout/episode_return_mean")) is not None:
        parts.append(f"return {episode_return:,.1f} in training")
    if (success_rate := state.metrics.get("rollout/success_rate")) is not None:
        parts.append(f"success rate {success_rate:.0%} in training")
    if (speed := state.metrics.get("time/steps_per_second")) is not None:
        parts.append(f"{speed:,.0f} steps/s")
    return ", ".join(parts)


def _format_evaluation(state: TrainerState) -> str:
    assert state.evaluation is not None  # guaranteed by the event
    result = state.evaluation
    over = f"over {result.episodes:,} episode{'s' if result.episodes > 1 else ''}"
    if result.episodes > 1:
        over = f"[{result.ci_low:,.1f}, {result.ci_high:,.1f}] {over}"
    success = "" if result.success_rate is None else f", success rate {result.success_rate:.0%}"
    return f"step {state.num_timesteps:,}: evaluation mean {result.return_mean:,.1f} {over}{success}"
