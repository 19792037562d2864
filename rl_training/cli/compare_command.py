"""The command `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from rl_training.cli.options import Json
from rl_training.cli.output import result_stream, write_result

Sources = Annotated[
    str,
    Parameter(
        name="SOURCE",
        help="The directory of a run or a folder of them, an MLflow run id, runs:/ID, an experiment of MLflow, or a "
        "sweep; repeatable. The group of the first run is the reference.",
    ),
]
Metric = Annotated[
    str,
    Parameter(
        help="The metric whose last value is the score of a run: heldout (default, the mean return of the held-out "
        "episodes), eval, or any name such as heldout/success_rate."
    ),
]
Threshold = Annotated[
    float | None,
    Parameter(
        help="The score that counts as good enough (default: evaluation.stop_at_return, else what Gymnasium has "
        "registered for the environment)."
    ),
]
Confidence = Annotated[
    float,
    Parameter(
        validator=validators.Number(gte=0.5, lt=1),
        help="Confidence of the intervals, and one minus the level of the tests (default: 0.95).",
    ),
]
Html = Annotated[
    Path | None,
    Parameter(
        metavar="FILE",
        help="Write a page with tables and pictures to this file; only an earlier comparison is replaced.",
    ),
]
Track = Annotated[bool, Parameter(help="Log the page to MLflow: to the sweep's run, or to a run of its own.")]


def compare(
    *sources: Sources,
    metric: Metric = "heldout",
    threshold: Threshold = None,
    confidence: Confidence = 0.95,
    html: Html = None,
    track: Track = False,
    json: Json = False,
) -> int:
    """Compare runs: which settings are better, with which confidence, and how many seeds it would take to tell."""
    with result_stream() as out:
        from rl_training.comparison.comparison import compare as compare_runs
        from rl_training.comparison.comparison_run import log_comparison
        from rl_training.pages.page_file import COMPARISON, require_place, write_page

        if html is not None:
            require_place(html.absolute(), COMPARISON)
        found = compare_runs(*sources, metric=metric, threshold=threshold, confidence=confidence)
        lines, values = found.lines(), {**found.to_dict(), "html": None, "run_id": None}
        if html is not None:
            write_page(html.absolute(), COMPARISON, found.to_html())
            lines, values["html"] = [*lines, f"page: {html}"], str(html.absolute())
        if track:
            values["run_id"], ui = log_comparison(found)
            lines = [*lines, f"MLflow run {values['run_id']}: {ui}"]
        write_result(out, values, lines, as_json=json)
        return 0
