"""Which runs may be compared: the complete ones, in the same environment, with the same evaluation and budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.comparison.groups import Group
from rl_training.comparison.recorded_run import RecordedRun
from rl_training.comparison.sources import FoundRuns, LeftOut
from rl_training.config.resume_rules import flatten_settings, is_listed
from rl_training.errors import UserError

LARGEST = 1e100
"""The largest value that is compared, so that sums and squares are finite."""

FULL_BUDGET = (None, "completed", "return_reached")
"""The reasons for the end of training after which a run has used its budget; None if none is recorded."""

ENVIRONMENT = ("env_id", "env_kwargs", "wrappers", "reset_options", "max_episode_steps")
"""Settings of the environment, as evaluation makes it."""

PROTOCOL = tuple(f"evaluation.{key}" for key in ("episodes", "final_episodes", "seed", "max_episode_steps"))
BUDGET = ("total_timesteps", "evaluation.stop_at_return", "evaluation.stop_after")

ASPECTS = {"environment": ENVIRONMENT, "evaluation": PROTOCOL, "budget": BUDGET}
"""What must be the same in all groups, and the settings that say so."""


def select_runs(found: FoundRuns, metric: str) -> tuple[list[RecordedRun], list[LeftOut]]:
    """Returns the runs that have a score and used their budget, and those that are left out.

    Raises:
        UserError: A run that was named itself must be left out.
    """
    kept, left_out = [], list(found.left_out)
    for run in found.runs:
        fault = find_fault(run, metric)
        if fault is None:
            kept.append(run)
        elif run.run_uid in found.named:
            raise UserError(f"{run.name} can't be compared, because it {fault}; leave it out, or train it to its end")
        else:
            left_out.append(LeftOut(run.name, fault))
    return kept, left_out


def find_fault(run: RecordedRun, metric: str) -> str | None:
    """Returns why a run can't be compared, as the end of the sentence "it ..."; None if it can."""
    if run.state == "running":
        return "still trains"
    if run.state == "failed":
        return f"failed at step {run.last_step:,}"
    if run.state == "killed":
        return f"was killed at step {run.last_step:,} of {run.config.total_timesteps:,}"
    if run.state == "stopped" or run.stop_reason not in FULL_BUDGET:
        return f"was stopped at step {run.last_step:,} of {run.config.total_timesteps:,}, which is another budget"
    if run.origin is not None:
        return f"continues run {run.origin}, whose steps are part of its budget"
    if not run.points.get(metric):
        return f"has no {metric}"
    if not is_usual(find_score(run, metric)):
        return f"has a {metric} that is no number, or too large a one"
    return None


def is_usual(value: float) -> bool:
    """Returns whether a value is a number of which statistics can be computed. MLflow stores infinity as 1.8e308."""
    return abs(value) <= LARGEST


def find_score(run: RecordedRun, metric: str) -> float:
    """Returns the value of a metric at its last step."""
    values = run.points[metric]
    return values[max(values)]


def require_comparable(groups: Sequence[Group]) -> None:
    """Checks that groups of runs differ neither in the environment nor in the evaluation nor in the budget.

    Raises:
        UserError: They do; the message names each such setting, and its value in each group that differs.
    """
    described = [describe_task(group.runs[0]) for group in groups]
    faults = []
    for aspect, parts in ((name, [task[name] for task in described]) for name in ASPECTS):
        for key in sorted({key for part in parts for key in part}):
            texts = [json.dumps(part.get(key), sort_keys=True) for part in parts]
            if len(set(texts)) > 1:
                found = list(dict.fromkeys(texts))
                examples = [groups[texts.index(text)].runs[0].name for text in found[:2]]
                shown = " and ".join(f"{text} ({run})" for text, run in zip(found, examples, strict=False))
                more = f" and {len(found) - 2} more values" if len(found) > 2 else ""
                faults.append(f"{key} (another {aspect}): {shown}{more}")
    if faults:
        raise UserError(f"these runs can't be compared; they differ in {'; '.join(faults)}; name runs that share them")


def describe_task(run: RecordedRun) -> Mapping[str, Mapping[str, Any]]:
    """Returns the settings of each of `ASPECTS`, by dotted key."""
    settings = flatten_settings(run.config.for_evaluation())
    return {
        aspect: {key: value for key, value in settings.items() if is_listed(key, keys)}
        for aspect, keys in ASPECTS.items()
    }
