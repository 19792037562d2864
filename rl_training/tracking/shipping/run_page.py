"""Writes the description on a run's page in MLflow: how the run stands, what to do next, and where it comes from.

The description is made from what MLflow knows about the run, so every process that changes the run can write it again,
on whatever machine. Its commands name the run by its id, which works everywhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_training.errors import TrackingError, one_line
from rl_training.run_layout import EPISODE
from rl_training.runs.evaluation_result import describe_other_numbers
from rl_training.runs.health_warnings import HEALTH
from rl_training.runtime.inexact_resumes import explain_inexact
from rl_training.tracking.attempts import Attempt, get_attempts
from rl_training.tracking.mlflow_links import make_run_fragment, make_version_fragment
from rl_training.tracking.mlflow_names import FLOW_RUN, FLOW_RUN_PAGE, FORKED_FROM, MAX_TAG, RETRAINED_FROM, shorten
from rl_training.tracking.mlflow_run import INEXACT_TAG, LOST_BEST_TAG, get_experiment_id
from rl_training.tracking.mlflow_store import NOTE
from rl_training.tracking.run_description import WARNINGS
from rl_training.tracking.shipping.figures import CURVE, HISTOGRAM

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

PICTURES = (CURVE, HISTOGRAM, EPISODE)
"""Artifacts that the description shows, in this order."""

SHOWN_ATTEMPTS = 5
"""Number of attempts, the newest, that the description lists beside the first."""

_TITLE_TAGS = {"algo", "env_id", "seed"}

_EARLY = {
    "return_reached": "the return `evaluation.stop_at_return` was reached",
    "callback": "a callback ended it",
    "paused": "its sweep has paused it",
    "pruned": "its sweep found its evaluations worse than those of other trials",
}


def refresh_page(client: MlflowClient, run_id: str, *, sending: bool = False) -> None:
    """Writes the description on a run's page, unless a user has rewritten it.

    Args:
        client: MLflow's client.
        run_id: The MLflow run of a training run.
        sending: Whether parts of the run are not in MLflow yet.
    """
    run = client.get_run(run_id)
    if not (run.data.tags.keys() >= _TITLE_TAGS and "total_timesteps" in run.data.params):
        return  # it is no run of rl_training, or its description is not sent yet
    try:
        page = _write_page(client, run, sending)
    except (ValueError, LookupError, TypeError) as error:  # a user changed the tags or logged metrics
        logger.warning("the description of run %s can't be written: %s", run_id, one_line(error))
        return
    first, _, _ = page.partition("\n\n")
    if run.data.tags.get(NOTE, first).startswith(first):
        client.set_tag(run_id, NOTE, shorten(page, MAX_TAG))


def _write_page(client: MlflowClient, run: Run, sending: bool) -> str:
    run_id = run.info.run_id
    pictures = _list_pictures(client, run)
    parts = [
        _write_title(run),
        *(f"![{name}](get-artifact?path={name}&run_uuid={run_id})" for name in pictures),
        _write_state(run, sending),
        _write_results(run.data.metrics),
        *_write_doubts(run),
        _write_start(run),
        _write_attempts(run),
        _write_origin(client, run),
        _write_versions(client, run_id),
        "The settings are in `config.yaml` among the artifacts, and the checkpoints under `checkpoints/`.",
    ]
    return "\n\n".join(filter(None, parts))


def try_refresh_page(client: MlflowClient, run_id: str, *, sending: bool = False) -> None:
    """Writes the description as `refresh_page` does, but logs an error, so that the caller's own work goes on."""
    from mlflow.exceptions import MlflowException

    try:
        refresh_page(client, run_id, sending=sending)
    except MlflowException as error:
        logger.warning("the description of run %s can't be written: %s", run_id, one_line(error))


def _write_title(run: Run) -> str:
    """Returns the first paragraph, which is the same for every attempt and every version of rl_training."""
    tags = run.data.tags
    steps = int(run.data.params["total_timesteps"])
    return f"**{tags['algo']}** on **{tags['env_id']}**, seed {tags['seed']}, {steps:,} steps."


def _list_pictures(client: MlflowClient, run: Run) -> list[str]:
    """Returns the pictures among the artifacts; those of the present description if the artifacts can't be listed."""
    try:
        there = {entry.path for entry in client.list_artifacts(run.info.run_id)}
    except Exception as error:  # of any kind of store; without it the rest of the run can still be sent
        logger.warning("the artifacts of run %s can't be listed: %s", run.info.run_id, one_line(error))
        return [name for name in PICTURES if f"![{name}]" in run.data.tags.get(NOTE, "")]
    return [name for name in PICTURES if name in there]


def _write_state(run: Run, sending: bool) -> str:
    tags, run_id = run.data.tags, run.info.run_id
    resume = f"`rl-training resume {run_id}`"
    if FLOW_RUN in tags:
        resume += f" or, as a flow, `rl-training flow resume {run_id}`"
    status, why = run.info.status, tags.get("stop_reason")
    if status == "RUNNING":
        text = f"**Running** on `{tags.get('host')}`. Stopped by Ctrl-C or a cancel, it can be resumed."
    elif status == "FINISHED" and why in _EARLY:
        text = f"**Finished** early, because {_EARLY[why]}. To train the remaining steps: {resume}"
    elif status == "FINISHED":
        text = (
            f"**Finished.** What can be done next:\n\n"
            f"- play new episodes: `rl-training evaluate {run_id}`\n"
            f"- offer the best checkpoint for promotion: `rl-training promote {run_id}`\n"
            f"- train longer, in a new run: `rl-training resume {run_id} --set total_timesteps=STEPS`"
        )
    elif status == "FAILED":
        text = f"**Failed**: {_quote(tags.get('error', 'no reason is known'))}. When the cause is mended: {resume}"
    elif why == "signal":
        text = f"**Stopped** by a signal. To continue from the newest checkpoint: {resume}"
    else:
        text = f"**Killed**: {_quote(tags.get('error', 'its process is gone'))}. To continue: {resume}"
    if sending:
        sync = _quote(f"rl-training sync {tags.get('run_dir')}")
        text += f"\n\nNot all of it is in MLflow yet. If this stays so, run {sync} on `{tags.get('host')}`."
    return text


def _write_results(metrics: Mapping[str, float]) -> str:
    """Returns the held-out evaluation in words; empty if there is none."""
    numbers = {name.removeprefix("heldout/"): value for name, value in metrics.items() if name.startswith("heldout/")}
    if "return_mean" not in numbers:
        return ""
    parts = [f"mean return {numbers['return_mean']:,.2f}"]
    if {"ci_low", "ci_high"} <= numbers.keys():
        parts[0] += f" (95 % interval {numbers['ci_low']:,.2f} to {numbers['ci_high']:,.2f})"
    parts += describe_other_numbers(numbers)
    if numbers.get("cut_episodes"):
        parts.append(f"**{numbers['cut_episodes']:.0f} episodes cut** at `evaluation.max_episode_steps`")
    played = f"Over {numbers['episodes']:.0f} held-out episodes" if "episodes" in numbers else "Held out"
    return f"{played}: {', '.join(parts)}."


def _write_doubts(run: Run) -> Iterator[str]:
    """Yields the warnings of validation and of training, and the resumes that may not have been exact."""
    warnings = run.data.tags.get(WARNINGS, "none")
    if warnings != "none":
        yield "Validation warned:\n\n" + "\n".join(f"- {line}" for line in warnings.splitlines())
    health = run.data.tags.get(HEALTH, "none")
    if health != "none":
        yield "Training has gone bad:\n\n" + "\n".join(f"- {line}" for line in health.splitlines())
    if LOST_BEST_TAG in run.data.tags:
        yield "A best checkpoint was missing when the run was resumed; the tag `best.lost` names its return."
    if (recorded := run.data.tags.get(INEXACT_TAG)) is None:
        return
    try:
        yield "\n".join(f"- not exact: {explain_inexact(entry)}" for entry in json.loads(recorded))
    except (ValueError, KeyError, TypeError):  # the tag was cut, because the list is long
        yield "The run is not exact; `metadata.json` among the artifacts says why."


def _write_start(run: Run) -> str:
    attempts, tags = _read_attempts(run), run.data.tags
    where = f"in the run directory {_quote(str(tags.get('run_dir')))} on `{tags.get('host')}`"
    if attempts and attempts[0].started_by:
        return f"Started by {_quote(attempts[0].started_by)}{_link_flow_run(attempts[0], run)}, {where}."
    return f"It is {where}."


def _write_attempts(run: Run) -> str:
    attempts, count = _read_attempts(run), int(run.data.tags.get("attempt", 1))
    if count < 2:
        return ""
    shown = attempts[1:][-SHOWN_ATTEMPTS:]
    lines = [
        f"- attempt {number}: from step {attempt.from_step:,}, on `{attempt.host}`"
        + (f", by {_quote(attempt.started_by)}" if attempt.started_by else "")
        + _link_flow_run(attempt, run)
        for number, attempt in enumerate(shown, count - len(shown) + 1)
    ]
    return "\n".join([f"{count} attempts have trained it. After the first:\n", *lines])


def _read_attempts(run: Run) -> Sequence[Attempt]:
    try:
        return get_attempts(run)
    except TrackingError:  # somebody has changed the tag
        return []


def _link_flow_run(attempt: Attempt, run: Run) -> str:
    """Returns the attempt's flow run: a link if Prefect's pages are known, else the command that shows them."""
    if not attempt.flow_run:
        return ""
    newest, page = run.data.tags.get(FLOW_RUN, ""), run.data.tags.get(FLOW_RUN_PAGE, "")
    if newest and newest in page:
        return f" ([flow run {attempt.flow_run}]({page.replace(newest, attempt.flow_run)}))"
    return f" (flow run `{attempt.flow_run}`: `rl-training ui --prefect {attempt.flow_run}`)"


def _write_origin(client: MlflowClient, run: Run) -> str:
    tags = run.data.tags
    if FORKED_FROM not in tags:
        return f"Retrained {tags[RETRAINED_FROM]}." if RETRAINED_FROM in tags else ""
    parent = tags.get("forked_from.run_id", tags[FORKED_FROM])
    experiment = get_experiment_id(client, parent) if "forked_from.run_id" in tags else None
    name = f"[{parent}]({make_run_fragment(experiment, parent)})" if experiment else f"`{parent}`"
    tuned = "forked_from.fine_tuning" in tags
    how = "Fine-tuned from the weights of" if tuned else "Forked from"
    if (version := tags.get(RETRAINED_FROM)) is not None:
        how = f"Retrained from `{version}`, a policy of"
    return f"{how} run {name} at step {int(tags['forked_from.num_timesteps']):,}."


def _write_versions(client: MlflowClient, run_id: str) -> str:
    found = client.search_model_versions(f"run_id = '{run_id}'")
    links = [f"[{one.name}, version {one.version}]({make_version_fragment(one.name, one.version)})" for one in found]
    return f"Registered as {', '.join(sorted(links))}." if links else ""


def _quote(text: Any) -> str:
    return f"`{str(text).replace('`', chr(39))}`"
