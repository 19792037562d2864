"""A comparison as pandas data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.comparison.statistics import Estimate

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from rl_training.comparison.comparison import Comparison


def make_group_frame(comparison: Comparison) -> pd.DataFrame:
    """Returns a row for each group: its statistics with the ends of their intervals, then the settings that differ."""
    import pandas as pd

    rows = []
    for each in comparison.groups:
        times = each.time_to_threshold
        rows.append(
            {
                "group": each.group.name,
                "label": each.group.label,
                "seeds": len(each.scores),
                **_spread("iqm", each.iqm),
                **_spread("mean", each.mean),
                **_spread("median", each.median),
                **_spread("optimality_gap", each.optimality_gap),
                "reached_threshold": times and times.reached,
                "steps_to_threshold": times and times.median,
                "steps_to_threshold_low": times and times.low,
                "steps_to_threshold_high": times and times.high,
                "steps_per_second": each.steps_per_second,
                **each.group.differing,
            }
        )
    return pd.DataFrame(rows)


def make_verdict_frame(comparison: Comparison) -> pd.DataFrame:
    """Returns a row for each comparison with the reference."""
    import pandas as pd

    columns = ("group", "reference", "finding", "p_value", "corrected_p_value", "seeds_needed", "text")
    rows = [
        {
            **{name: getattr(verdict, name) for name in columns[:3]},
            **_spread("improvement", verdict.improvement),
            **_spread("iqm_difference", verdict.iqm_difference),
            **{name: getattr(verdict, name) for name in columns[3:]},
        }
        for verdict in comparison.verdicts
    ]
    return pd.DataFrame(rows)


def make_score_frame(comparison: Comparison) -> pd.DataFrame:
    """Returns a row for each run."""
    import pandas as pd

    return pd.DataFrame([{"group": each.group.name, **run} for each in comparison.groups for run in each.list_runs()])


def _spread(name: str, estimate: Estimate | None) -> dict[str, Any]:
    values = estimate.to_dict() if estimate else dict.fromkeys(("value", "low", "high"))
    return {name: values["value"], f"{name}_low": values["low"], f"{name}_high": values["high"]}
