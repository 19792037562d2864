"""The command `reproduce`: trains a run again, and says whether the result is the same."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rl_training.cli.options import AllowModule, Json
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import EXIT_FAILED, forbid_imports_from
from rl_training.runs.stopping import EXIT_STOPPED

Run = Annotated[str, Parameter(help="The directory of a run, an MLflow run id or a run_uid.")]
NoTrack = Annotated[bool, Parameter(help="Do not log the new run to MLflow.")]
Offline = Annotated[bool, Parameter(help="Start even if MLflow can't be reached.")]


def reproduce(
    run: Run,
    *,
    allow_module: AllowModule = (),
    no_track: NoTrack = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Train a run again from its record, and say whether weights and metrics are equal to the last bit.

    Exit code 0: equal. 1: not equal. 75: stopped by a signal; the same command continues.
    """
    with forbid_imports_from(run), result_stream() as out:
        from rl_training.api.reproduction.reproduce import reproduce as reproduce_run

        result = reproduce_run(run, allow_modules=allow_module, track=not no_track, offline=offline, progress=True)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        if result.stopped:
            return EXIT_STOPPED
        return 0 if result.equal else EXIT_FAILED
