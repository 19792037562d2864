"""The command `report`: writes a page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rl_training.cli.options import Json
from rl_training.cli.output import result_stream, write_result

Run = Annotated[
    str,
    Parameter(help="The directory of a run, an MLflow run id, a run_uid, or models:/NAME@ALIAS for a version's run."),
]
Out = Annotated[Path, Parameter(help="The file to write; only an earlier report is replaced (default: report.html).")]


def report(run: Run, *, out: Out = Path("report.html"), json: Json = False) -> int:
    """Write one page about a run: curves, episodes, settings, origin, decisions, and the command that repeats it."""
    with result_stream() as stream:
        from rl_training.run_report.report import report as write_report

        path = write_report(run, out)
        write_result(stream, {"report": str(path)}, [str(path)], as_json=json)
        return 0
