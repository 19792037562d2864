"""The commands that list what there is: `runs`, `configs` and `algorithms`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from rl_training.cli.options import Json
from rl_training.cli.output import format_table, result_stream, write_result

if TYPE_CHECKING:
    from rl_training.api.run_listing import ListedRun

logger = logging.getLogger(__name__)

Mlflow = Annotated[bool, Parameter(help="List the runs in MLflow instead of those in the home.")]
OfEnv = Annotated[
    str | None, Parameter(help="Only runs of this environment, with or without its module; * stands for any text.")
]
OfAlgo = Annotated[str | None, Parameter(help="Only runs of this algorithm.")]
InState = Annotated[
    Literal["running", "finished", "stopped", "failed", "killed", "unreadable"] | None,
    Parameter(help="Only runs in this state."),
]
Sort = Annotated[
    Literal["started", "return", "best", "success", "steps", "env", "algo", "state"],
    Parameter(help="The column to sort by; numbers and times from the largest (default: started)."),
]
Limit = Annotated[
    int, Parameter(validator=validators.Number(gte=1), help="Largest number of runs to list (default: 20).")
]

COLUMNS = ("run", "env", "algo", "seed", "steps", "state", "best", "return", "success", "started")


def runs(
    *,
    mlflow: Mlflow = False,
    env: OfEnv = None,
    algo: OfAlgo = None,
    state: InState = None,
    sort: Sort = "started",
    limit: Limit = 20,
    json: Json = False,
) -> int:
    """List runs: what they trained, how they ended, and how well they did."""
    with result_stream() as out:
        from rl_training.api.run_listing import list_runs

        found = list_runs(mlflow=mlflow, env=env, algo=algo, state=state, sort=sort)
        shown = found[:limit]
        for run in shown:
            if run.problem:
                logger.warning("%s can't be read: %s", run.run_dir, run.problem)
        if len(found) > limit:
            logger.info("%d of %d runs; --limit %d lists all", limit, len(found), len(found))
        lines = format_table(COLUMNS, [_format_run(run, mlflow) for run in shown]) if shown else ["no runs"]
        values = {"runs": [run.to_dict() for run in shown], "total": len(found)}
        write_result(out, values, lines, as_json=json)
        return 0


def _format_run(run: ListedRun, mlflow: bool) -> list[str]:
    name = (run.run_id if mlflow else run.run_uid) or run.run_dir
    returns = ["-" if value is None else f"{value:,.1f}" for value in (run.best_return, run.return_mean)]
    success = "-" if run.success_rate is None else f"{100 * run.success_rate:.0f}%"
    seed, steps = ("-" if number is None else f"{number:,}" for number in (run.seed, run.num_timesteps))
    started = "-" if run.started is None else run.started[:16].replace("T", " ")
    state = ", ".join([run.state, *run.health])
    return [name, run.env_id or "-", run.algo or "-", seed, steps, state, *returns, success, started]


def configs(*, json: Json = False) -> int:
    """List the shipped configs, which `--config` takes by name."""
    with result_stream() as out:
        from rl_training.config.shipped_configs import list_shipped_configs
        from rl_training.experiment.loading import load_config

        found = {name: load_config(name) for name in list_shipped_configs()}
        values = [
            {"name": name, "algo": each.algo, "env_id": each.env_id, "total_timesteps": each.total_timesteps}
            for name, each in found.items()
        ]
        rows = [(name, each.algo, each.env_id, f"{each.total_timesteps:,}") for name, each in found.items()]
        write_result(out, {"configs": values}, format_table(("name", "algo", "env", "steps"), rows), as_json=json)
        return 0


def algorithms(*, json: Json = False) -> int:
    """List the algorithms that a config can use."""
    with result_stream() as out:
        from rl_training.experiment.registry import list_algorithms

        names = list_algorithms()
        write_result(out, {"algorithms": names}, names, as_json=json)
        return 0
