"""The commands that decide who is champion: `promote` and `rollback`.

A decision that was made is exit code 0, whatever it is; the JSON has it under `verdict`.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rl_training.cli.options import AllowModule, Candidate, Force, Json, Rules
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import keeping_out

Model = Annotated[str, Parameter(help="The registered model's name.")]
Reason = Annotated[str, Parameter(metavar="TEXT", help="Why; it stays on the version that is rolled back.")]


def promote(
    source: Candidate,
    *,
    set_: Rules = (),
    force: Force = None,
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Let a candidate play against the champion, on fresh episodes, and make it champion if it is better."""
    with keeping_out(source), result_stream() as out:
        from rl_training.api.promotion import promote_candidate

        result = promote_candidate(source, set_, force=force, allow_modules=allow_module)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def rollback(model: Model, *, reason: Reason, json: Json = False) -> int:
    """Make the previous champion of a registered model champion again."""
    with result_stream() as out:
        from rl_training.api.promotion import roll_back

        result = roll_back(model, reason=reason)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0
