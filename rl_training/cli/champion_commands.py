"""The commands that change the champion: `promote` and `rollback`.

The exit code is 0 whatever the gate decides; the JSON output contains the decision under `verdict`.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rl_training.cli.options import AllowModule, Candidate, Force, Json, Rules
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import forbid_imports_from

Model = Annotated[str, Parameter(help="The name of the registered model.")]
Reason = Annotated[
    str, Parameter(metavar="TEXT", help="The reason, which is recorded on the version that is rolled back.")
]


def promote(
    source: Candidate,
    *,
    set_: Rules = (),
    force: Force = None,
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Compare a candidate with the champion on new episodes, and promote the candidate if it is better."""
    with forbid_imports_from(source), result_stream() as out:
        from rl_training.api.promotion import promote_candidate

        result = promote_candidate(source, set_, force=force, allow_modules=allow_module)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def rollback(model: Model, *, reason: Reason, allow_module: AllowModule = (), json: Json = False) -> int:
    """Restore the previous champion of a registered model."""
    with result_stream() as out:
        from rl_training.api.promotion import roll_back

        result = roll_back(model, reason=reason, allow_modules=allow_module)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0
