"""Runs that have ended, written without training, for the tests of comparisons."""

from mlflow_store import make_run, ship_all

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.run_description import describe_run

STEPS = 1_000


def finished_run(score=None, *, curve=None, status="FINISHED", stop_reason="completed", **settings):
    """Makes the directory of a run with a held-out score and periodic evaluations; returns it.

    Args:
        score: The mean return of the held-out episodes; None if there was no held-out evaluation.
        curve: The mean return of the periodic evaluations by step.
        status: The status in `status.json`.
        stop_reason: Why training ended.
        settings: Settings of the run.
    """
    run_dir, _ = make_run(**{"total_timesteps": STEPS, **settings})
    log = MetricLog(run_dir)
    for step, value in (curve or {}).items():
        log.log(step, {"eval/return_mean": value, "time/steps_per_second": 100.0}, "eval")
    if score is not None:
        log.log(STEPS, {"heldout/return_mean": score, "heldout/success_rate": 0.5}, "heldout")
    log.close()
    json_files.write_status(run_dir, status, stop_reason, None)
    return run_dir


def group_of_runs(*scores, first_seed=0, **settings):
    """Makes a run for each score, with the seeds from `first_seed` on; returns their directories."""
    return [finished_run(score, seed=first_seed + i, **settings) for i, score in enumerate(scores)]


def ship(run_dir, tags=None):
    """Sends a finished run to the embedded store; returns the id of its MLflow run."""
    from rl_training.comparison.recorded_run import read_directory

    config = read_directory(run_dir).config
    json_files.write_json(run_dir / run_layout.TRACKING, describe_run(run_dir, config, tags or {}))
    return ship_all(run_dir, lambda: json_files.read_json(run_dir / run_layout.STATUS)).address.run_id
