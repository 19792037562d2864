"""The commands for servers: `deploy`, `doctor` and `worker` for the user's Prefect server, and `ui`."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from rl_training.cli.options import Json
from rl_training.cli.output import ResultLost, result_stream, write_result

EXIT_USER_ERROR = 2

File = Annotated[
    Path | None,
    Parameter(help="The prefect.yaml (default: in the working directory, or else in the package)."),
]
Notify = Annotated[
    str | None,
    Parameter(help="The notification block on the server that tells people what happened, such as slack-webhook/team."),
]
Fix = Annotated[bool, Parameter(help="End runs in MLflow whose process no longer exists.")]
Pool = Annotated[str, Parameter(help="The work pool (default: rl-training).")]
Queue = Annotated[
    tuple[str, ...],
    Parameter(
        name="--queue", metavar="QUEUE", help="A queue of the pool to take flow runs from (default: all); repeatable."
    ),
]
Name = Annotated[str | None, Parameter(help="The name of the worker (default: a unique name).")]
Limit = Annotated[
    int | None,
    Parameter(validator=validators.Number(gte=1), help="Largest number of flow runs at a time (default: no limit)."),
]
Shown = Annotated[
    str | None,
    Parameter(help="A run directory, an MLflow run id or a registered version; with --prefect, a flow run id."),
]
Prefect = Annotated[bool, Parameter(help="Open Prefect's pages instead, with the flow runs of the command line.")]
Port = Annotated[
    int,
    Parameter(validator=validators.Number(gte=1024, lte=65535), help="The port on 127.0.0.1 (default: a free port)."),
]
NoBrowser = Annotated[bool, Parameter(help="Print the link, but do not open a browser.")]


def ui(
    source: Shown = None, *, prefect: Prefect = False, port: Port | None = None, no_browser: NoBrowser = False
) -> int:
    """Open MLflow's pages at a private address until Ctrl-C."""
    with result_stream() as out, ExitStack() as stack:
        from rl_training.serving.loopback import open_in_browser, show_in_browser

        def announce(link: str, *, private: bool) -> None:
            try:
                print(link, file=out, flush=True)
            except OSError as error:
                raise ResultLost(f"the link could not be written to stdout: {error.strerror}") from None
            if private:
                print("private link, valid until Ctrl-C", file=sys.stderr, flush=True)
            if private and not no_browser:
                stack.enter_context(show_in_browser(link))
            elif not no_browser:
                open_in_browser(link)

        with suppress(KeyboardInterrupt):
            if prefect:
                from rl_training.services.prefect_pages import show_prefect

                show_prefect(source, port or 0, announce)
            else:
                from rl_training.serving.mlflow_pages import show_mlflow

                show_mlflow(source, port or 0, announce)
        return 0


def deploy(*, file: File = None, notify: Notify = None, json: Json = False) -> int:
    """Set up a Prefect server: work pool, crash detection, deployments with their limits and schedules."""
    with result_stream() as out:
        from rl_training.services.deploy import deploy as run_deploy

        result = run_deploy(file, notify=notify)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def doctor(*, fix: Fix = False, json: Json = False) -> int:
    """Check the Prefect server, its workers and MLflow, and show how to fix each problem."""
    with result_stream() as out:
        from rl_training.services.doctor import diagnose

        diagnosis = diagnose(fix=fix)
        write_result(out, diagnosis.to_dict(), diagnosis.lines(), as_json=json)
        return 0 if diagnosis.healthy else EXIT_USER_ERROR


def worker(*, pool: Pool = "rl-training", queue: Queue = (), name: Name = None, limit: Limit = None) -> int:
    """Run the flow runs of a work pool. On SIGTERM or Ctrl-C, they save before the worker ends."""
    from rl_training.services.prefect_environment import prepare_prefect

    with prepare_prefect():
        from rl_training.services.worker.running import run_worker

        run_worker(pool, queues=queue, name=name, limit=limit)
    return 0
