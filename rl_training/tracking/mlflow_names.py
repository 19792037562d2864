"""Names in MLflow: those of tags, and those of settings and metrics, whose own names and values may be anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_KEY = 250
MAX_PARAM = 6_000
MAX_TAG = 8_000
"""MLflow's limits on the length of names, parameters and tags, in characters."""

KIND = "rl_training.kind"
"""Tag: one of `TRAINING_KINDS`; `monitoring` for a run with evaluations of a champion, `SWEEP` or `COMPARISON`."""

TRAINING_KINDS = ("training", "fork", "fine-tuning", "retraining")
"""The kinds of runs that train something. Runs of other kinds have no checkpoints, and lists of runs leave them out."""

SWEEP = "sweep"
"""The kind of a run with the page of a sweep; the runs of the sweep's trials are its children."""

COMPARISON = "comparison"
"""The kind of a run with the page of a comparison."""

WINNER = "rl_training.winner"
"""Tag of a sweep's run: the MLflow run of the winner's best seed."""

FLOW, DEPLOYMENT = "prefect.flow", "prefect.deployment"
"""Tags of a run that a flow started: the flow, and its deployment if there is one, as `FLOW/DEPLOYMENT`."""

FLOW_RUN, FLOW_RUN_PAGE = "prefect.flow_run_id", "prefect.flow_run_url"
"""Tags of a run: the flow run that trained it last, and its page, if Prefect's pages are known."""

PARENT = "mlflow.parentRunId"
"""MLflow's tag of a nested run: the run above it, which is the sweep's for a run of a trial."""

SWEEP_UID, TRIAL = "rl_training.sweep", "rl_training.trial"
"""Tags of a run of a trial: the `uid` of its sweep, and the run's name within the sweep, such as `t0007-s3`."""

PHASE = "rl_training.phase"
"""Tag of a trial's run: `search`, or `confirmation` for the runs on new seeds, which alone say how good a point is."""

FORKED_FROM = "forked_from.run_uid"
"""Tag of a fork or a fine-tuned run: the `run_uid` of the run that it started from."""

VERSION = "version."
"""Prefix of the tags with the versions of packages."""

RETRAINED_FROM = "retrain.start"
"""Tag of a retraining: the version that it started from, or `scratch`."""

SHORTENED = " ... [shortened; config.yaml among the artifacts has all of it]"
"""The end of a value that was cut."""

_ILLEGAL = re.compile(r"[^\w\-. /]", re.ASCII)
_ODD_PATH = re.compile(r"(^|/)(\.{0,2}(/|$))+")


def make_legal_name(name: str) -> str:
    """Returns `name` with `_` for everything that MLflow does not allow in names of metrics, parameters and tags."""
    return _ODD_PATH.sub(r"\1_", _ILLEGAL.sub("_", name))[:MAX_KEY]


def shorten(value: str, limit: int) -> str:
    """Returns `value`, cut to `limit` characters and marked as shortened if it is longer."""
    return value if len(value) <= limit else value[: limit - len(SHORTENED)] + SHORTENED


def flatten(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as MLflow parameters: dotted names, values as text of at most 6,000 characters.

    Strings are kept; other values are written as JSON. Names that become equal because of characters that MLflow does
    not allow get a number.
    """
    params: dict[str, str] = {}
    for path, value in _iterate_leaves(settings, ""):
        name, count = make_legal_name(path), 1
        while name in params:
            count += 1
            name = make_legal_name(f"{path[: MAX_KEY - 5]}_{count}")
        params[name] = shorten(value if isinstance(value, str) else json.dumps(value, default=str), MAX_PARAM)
    return params


def _iterate_leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _iterate_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
