"""The command `sweep`, and the sweep of `train --seeds`."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

from rl_training.cli.options import Json, Set
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import EXIT_FAILED
from rl_training.errors import UserError
from rl_training.runs.stopping import EXIT_STOPPED
from rl_training.system.programs import program
from rl_training.system.signal_handlers import SIGNALS

if TYPE_CHECKING:
    from rl_training.config.settings import TrainConfig
    from rl_training.sweeps.sweep_result import SweepResult

SweepFile = Annotated[str, Parameter(help="A YAML file, or the name of a shipped sweep such as ppo_cartpole.")]
New = Annotated[bool, Parameter(help="Begin another sweep even if there is an unfinished one with the same settings.")]
NoTrack = Annotated[
    bool, Parameter(help="Do not log the runs to MLflow; the run directories still contain everything.")
]
Offline = Annotated[
    bool, Parameter(help="Start even if MLflow can't be reached; `rl-training sync` sends the runs later.")
]


def sweep(
    file: SweepFile,
    *,
    new: New = False,
    set_: Set = (),
    no_track: NoTrack = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Search for better settings, and train the best ones again on new seeds. The same command continues a sweep."""
    with result_stream() as out:
        from rl_training.sweeps.loading import load_sweep

        loaded = load_sweep(file, set_)  # before importing torch, to report a typo at once
        if (engine := loaded.settings.engine.name) != "local":
            if no_track or offline:
                raise UserError(
                    f"--no-track and --offline: the engine {engine} needs MLflow, to resume trials elsewhere"
                )
            from rl_training.services.flow_runner import run_sweep_flow

            result = run_sweep_flow(file, set_, new=new, continue_with=_format_command())
            return _finish(result, out, json, result.to_dict())
        from rl_training.sweeps.engines.local import LocalEngine
        from rl_training.sweeps.running import run_sweep

        result = run_sweep(
            loaded, LocalEngine(), new=new, track=not no_track, offline=offline, continue_with=_format_command()
        )
        return _finish(result, out, json, result.to_dict())


def train_seeds(settings: TrainConfig, seeds: int, out: TextIO, *, track: bool, offline: bool, json: bool) -> int:
    """Trains one config with several seeds, writes their results, and returns the exit code."""
    from rl_training.sweeps.engines.local import LocalEngine
    from rl_training.sweeps.running import describe_seeds, make_seeds_sweep, run_sweep

    sweep = make_seeds_sweep(settings, seeds)
    result = run_sweep(sweep, LocalEngine(), track=track, offline=offline, continue_with=_format_command())
    return _finish(result, out, json, describe_seeds(result))


def _finish(result: SweepResult, out: TextIO, as_json: bool, values: Mapping[str, Any]) -> int:
    """Writes the result and returns the exit code. Signals are ignored from here on."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    write_result(out, values, result.lines(), as_json=as_json)
    if not result.finished:
        return EXIT_STOPPED
    # A point that fails is a result of a search; a seed of one config that fails is a failure.
    is_search = result.best is not None
    return 0 if is_search or all(trial.state != "failed" for trial in result.search) else EXIT_FAILED


def _format_command() -> str:
    """Returns this command, without `--new`, which would begin another sweep."""
    return shlex.join([program("rl-training"), *(word for word in sys.argv[1:] if word != "--new")])
