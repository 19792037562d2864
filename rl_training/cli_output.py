"""What the command line writes: the result alone to stdout, everything else to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rl_training.api.training import RunSummary


@contextmanager
def result_stream() -> Iterator[TextIO]:
    """Yields the real stdout; within the block all that writes to stdout, child processes too, goes to stderr.

    A library or an environment that prints can then not come between a caller and the result.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class _StderrHandler(logging.Handler):
    """Looks stderr up for each record, so that lines land above a progress bar, which replaces it while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def log_to_stderr() -> None:
    """Shows this package's messages as plain lines, and of others warnings only."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_StderrHandler()])
    logging.getLogger("rl_training").setLevel(logging.INFO)


def write_result(stream: TextIO, result: Mapping[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Writes a command's result: one JSON object on one line, or lines for people."""
    print(json.dumps(result, allow_nan=False) if as_json else "\n".join(lines), file=stream, flush=True)


def evaluation_lines(evaluation: Mapping[str, Any]) -> list[str]:
    """Returns the sentence that says how good a policy is."""
    lines = [
        f"mean return {evaluation['return_mean']:.2f} over {evaluation['episodes']} held-out episodes "
        f"(95 % interval {evaluation['ci_low']:.2f} to {evaluation['ci_high']:.2f}, "
        f"deviation {evaluation['return_std']:.2f})"
    ]
    if evaluation.get("cut"):
        lines.append(f"{evaluation['cut']} episodes were cut at evaluation.max_episode_steps")
    return lines


def run_lines(summary: RunSummary) -> list[str]:
    """Returns what a run came to, for people."""
    if summary.stop_reason == "signal":
        lines = [
            f"stopped by a signal at step {summary.num_timesteps:,}",
            f"go on with: rl-training resume {summary.run_dir}",
        ]
    else:
        lines = [f"trained {summary.num_timesteps:,} steps at {summary.steps_per_second:,.0f} steps/s"]
    if summary.evaluation is not None:
        lines += evaluation_lines(summary.evaluation.to_dict())
    lines += [f"run directory: {summary.run_dir}", f"checkpoint: {summary.checkpoint}"]
    if summary.run_id is not None:
        lines += [f"MLflow run {summary.run_id}: {summary.ui}"]
    return [*lines, *([summary.unsent] if summary.unsent else [])]
