"""How far training has come: a bar on a terminal, plain lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rl_training.runtime.callbacks import Callback, TrainerState

REDRAWS_A_SECOND = 4
PLAIN_LINES = 10
"""Without a terminal a run prints about this many lines besides its evaluations."""


def make_progress() -> Callback:
    """Returns the progress display that fits where stderr goes."""
    console = Console(stderr=True)
    return ProgressBar(console) if console.is_terminal else ProgressLines()


class ProgressLines(Callback):
    """Prints a line at each tenth of the run and at each evaluation."""

    def __init__(self) -> None:
        self._printed = 0

    def on_update_end(self, state: TrainerState) -> None:
        """Prints where training is, at each tenth of the way."""
        tenth = PLAIN_LINES * state.num_timesteps // state.config.total_timesteps
        if state.metrics and tenth > self._printed:
            self._printed = tenth
            print(_line(state), file=sys.stderr, flush=True)

    def on_eval_end(self, state: TrainerState) -> None:
        """Prints the evaluation."""
        print(_evaluation_line(state), file=sys.stderr, flush=True)


class ProgressBar(Callback):
    """Draws a bar on a terminal, and leaves a line above it for each evaluation."""

    def __init__(self, console: Console) -> None:
        # Drawn from the training thread a few times a second: a refreshing thread of its own would take its turns.
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
        """Moves the bar."""
        if state.metrics:
            self._progress.update(self._task, note=_note(state))
        self._move(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Moves the bar."""
        self._move(state)

    def on_eval_end(self, state: TrainerState) -> None:
        """Leaves a line above the bar."""
        self._progress.console.print(_evaluation_line(state), highlight=False)

    def on_train_end(self, state: TrainerState) -> None:
        """Leaves the bar as it is."""
        self._progress.update(self._task, completed=state.num_timesteps)
        self._progress.stop()

    def _move(self, state: TrainerState) -> None:
        now = time.monotonic()
        if now >= self._next_redraw:
            self._next_redraw = now + 1 / REDRAWS_A_SECOND
            self._progress.update(self._task, completed=state.num_timesteps)
            self._progress.refresh()


def _line(state: TrainerState) -> str:
    return f"step {state.num_timesteps:,} of {state.config.total_timesteps:,}: {_note(state)}"


def _note(state: TrainerState) -> str:
    parts = []
    if (episode_return := state.metrics.get("rollout/episode_return_mean")) is not None:
        parts.append(f"return {episode_return:,.1f} in training")
    if (speed := state.metrics.get("time/steps_per_second")) is not None:
        parts.append(f"{speed:,.0f} steps/s")
    return ", ".join(parts)


def _evaluation_line(state: TrainerState) -> str:
    assert state.evaluation is not None  # the event's own contract
    result = state.evaluation
    over = f"over {result.episodes:,} episode{'s' if result.episodes > 1 else ''}"
    if result.episodes > 1:
        over = f"[{result.ci_low:,.1f}, {result.ci_high:,.1f}] {over}"
    return f"step {state.num_timesteps:,}: evaluation mean {result.return_mean:,.1f} {over}"
