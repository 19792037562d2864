"""Runs a sweep from its settings to its result: `rl_training.sweep`, and the sweep over some seeds of one config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.config.parsing import Overrides
from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError, RunFailed, UserError, one_line
from rl_training.runs.stopping import StopFlag, stop_on_signals
from rl_training.sweeps.confirmation import plan_confirmation
from rl_training.sweeps.engines.engine import Engine
from rl_training.sweeps.engines.local import LocalEngine
from rl_training.sweeps.loading import Sweep, count_ranks, load_sweep
from rl_training.sweeps.methods import make_method
from rl_training.sweeps.page.sweep_page import TrackedPage
from rl_training.sweeps.plan import Round, RunRecord, Step
from rl_training.sweeps.study.database import Database
from rl_training.sweeps.study.driver import Driver, hold_sweep
from rl_training.sweeps.study.lease import SweepTakenOver
from rl_training.sweeps.study.study import begin_sweep
from rl_training.sweeps.sweep_result import SweepResult, make_result
from rl_training.system.paths import home


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    new: bool = False,
    track: bool = True,
    offline: bool = False,
) -> SweepResult:
    """Runs a sweep with processes of this machine, as `rl-training sweep` does.

    An unfinished sweep with the same settings is continued. SIGINT (Ctrl-C, or a notebook's stop button), SIGTERM and
    SIGHUP stop the sweep: its running trials are saved, and the result so far is returned.

    Args:
        source: A YAML file, the name of a shipped sweep such as `ppo_cartpole`, or the settings as a mapping.
        overrides: Values that replace those of the sweep: a mapping with nested or dotted keys, or texts `trials=50`.
        new: Whether to begin another sweep even if there is an unfinished one.
        track: Whether to log the sweep and its runs to MLflow.
        offline: Whether to keep the data for MLflow in the runs' directories, for `rl-training sync`.

    Returns:
        The result; its `finished` is False after a signal.

    Raises:
        ConfigError: The settings are not valid.
        UserError: The study database or the tracking server can't be used, or another process runs the sweep.
        RunFailed: Every trial of the first round failed, or a trial was lost too often.
    """
    loaded = load_sweep(source, overrides)
    require_local(loaded)
    return run_sweep(loaded, LocalEngine(), new=new, track=track, offline=offline)


def require_local(sweep: Sweep) -> None:
    """Checks that the sweep's trials run on this machine.

    Raises:
        UserError: They run elsewhere.
    """
    if (name := sweep.settings.engine.name) != "local":
        raise UserError(
            f"engine: got {name}, expected local; `rl-training sweep` and sweep-flow run the trials on other engines"
        )


def make_seeds_sweep(config: TrainConfig, seeds: int) -> Sweep:
    """Returns the sweep that trains one config with `seeds` seeds, from its own seed on.

    Raises:
        ConfigError: The number of seeds is not valid, or the config has a directory for its run.
    """
    if config.run_dir is not None:
        raise ConfigError(
            f"run_dir: got {config.run_dir} with several seeds, expected none; each seed has a directory of its own in "
            "the home, which RL_TRAINING_HOME moves"
        )
    return load_sweep(
        {
            "name": config.run_name or f"{config.env_id.rpartition(':')[2]}-{config.algo}",
            "config": config.model_dump(mode="json"),
            "method": "grid",
            "trials": 1,
            "parallel": 1,
            "seeds": seeds,
            "resources": {"cpus": config.threads * count_ranks(config)},
            "confirmation": {"points": 0},
        }
    )


def run_sweep(
    sweep: Sweep,
    engine: Engine,
    *,
    new: bool = False,
    track: bool = True,
    offline: bool = False,
    stop: StopFlag | None = None,
    continue_with: str | None = None,
) -> SweepResult:
    """Runs a sweep on an engine, and closes the engine.

    Args:
        sweep: The sweep; an unfinished one with the same settings takes its place.
        engine: What runs the trials.
        new: See `sweep`.
        track: See `sweep`.
        offline: See `sweep`.
        stop: Asks the sweep to stop; by default, only signals do.
        continue_with: The command that continues a stopped sweep, for messages.

    Raises:
        UserError, RunFailed: See `sweep`.
    """
    home()  # raises if it can't be written
    stop, method, database = stop or StopFlag(), make_method(sweep), Database()
    try:
        uid = begin_sweep(database, sweep.uid, sweep.name, sweep.digest, new=new)
        sweep = replace(sweep, uid=uid)

        def plan(rounds: Sequence[Round]) -> list[Step]:
            return method.plan(rounds) or plan_confirmation(sweep, rounds)

        with hold_sweep(database, uid, stop) as study, stop_on_signals(stop):
            page = TrackedPage(sweep, track=track and not offline)
            with _note_failure(page):
                rounds, finished = Driver(sweep, engine, study, page, stop, offline=offline).run(plan)
            study.require_lease()  # else the page belongs to another process
            result = make_result(
                sweep,
                rounds,
                finished=finished,
                run_id=page.run_id,
                page=page.address,
                folder=str(page.folder),
                continue_with=None if finished else continue_with,
            )
            page.finish(rounds, result)
            if finished:
                study.finish()
            return result
    finally:
        engine.close()
        database.close()


@contextmanager
def _note_failure(page: TrackedPage) -> Iterator[None]:
    """Lets the page say why the sweep has failed; if another process has taken the sweep over, the page is its own."""
    try:
        yield
    except SweepTakenOver:
        raise
    except (RunFailed, UserError) as error:
        page.fail(one_line(error))
        raise


def describe_seeds(result: SweepResult) -> dict[str, Any]:
    """Returns the result of a sweep over seeds for JSON: a summary of each run, and their aggregate."""
    runs = [run for trial in result.search for run in trial.runs]
    return {"runs": list(map(_describe_run, runs)), "aggregate": result.aggregate}


def _describe_run(run: RunRecord) -> dict[str, Any]:
    """Returns the summary of a run as `rl-training train --json` prints it; of a failed run, its error."""
    known = {"run_id": run.run_id, "run_uid": run.run_uid, "run_dir": run.run_dir}
    failed = {**known, "num_timesteps": run.num_timesteps, "stop_reason": "failed", "error": run.error}
    return {"seed": run.seed, **(failed if run.summary is None else run.summary)}
