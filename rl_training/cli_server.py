"""The commands that deal with a Prefect server which lasts: `deploy`, `doctor`, `worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from rl_training.cli_output import result_stream, write_result

EXIT_USER_ERROR = 2

File = Annotated[
    Path | None,
    Parameter(help="By default the prefect.yaml of the working directory, else the one that came with the package."),
]
Json = Annotated[bool, Parameter(name="--json", help="Print the result as one line of JSON.")]
Fix = Annotated[bool, Parameter(help="End in MLflow the runs that nothing else will end.")]
Pool = Annotated[str, Parameter(help="The work pool whose flow runs it takes.")]
Name = Annotated[str | None, Parameter(help="The worker's name; by default one that no other has.")]
Limit = Annotated[
    int | None, Parameter(validator=validators.Number(gte=1), help="Flow runs at a time; by default all that are due.")
]


def deploy(*, file: File = None, json: Json = False) -> int:
    """Prepare a Prefect server: work pool, watch for dead runs, deployments with their limits and schedules."""
    with result_stream() as out:
        from flows.deploy import deploy as bring

        deployed = bring(file)
        write_result(out, deployed.to_dict(), deployed.lines(), as_json=json)
        return 0


def doctor(*, fix: Fix = False, json: Json = False) -> int:
    """Look at the Prefect server, its workers and MLflow, and say what to do about what is wrong."""
    with result_stream() as out:
        from flows.doctor import examine

        diagnosis = examine(fix=fix)
        write_result(out, diagnosis.to_dict(), diagnosis.lines(), as_json=json)
        return 0 if diagnosis.healthy else EXIT_USER_ERROR


def worker(*, pool: Pool = "rl-training", name: Name = None, limit: Limit = None) -> int:
    """Run what a Prefect server has due; SIGTERM or Ctrl-C lets the flow runs under way save first."""
    from flows.server import before_import

    with before_import():
        from flows.worker import run_worker

        run_worker(pool, name=name, limit=limit)
    return 0
