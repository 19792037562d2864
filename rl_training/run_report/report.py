"""The report of a run: one page of HTML with its results, settings, origin and decisions, which loads nothing."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rl_training.api.summary import format_evaluation
from rl_training.comparison.groups import format_value
from rl_training.config.resume_rules import find_differences
from rl_training.config.settings import TrainConfig
from rl_training.errors import printable
from rl_training.pages.html_page import render_page
from rl_training.pages.page_file import REPORT, require_place, write_page
from rl_training.promotion.decision import format_verdict, read_verdict
from rl_training.run_report.pictures import draw_pictures
from rl_training.run_report.reported_run import ReportedRun, read_run
from rl_training.runs.evaluation_result import select_evaluation_numbers
from rl_training.runs.health_warnings import read_health_warnings
from rl_training.runtime.inexact_resumes import INEXACT, explain_inexact
from rl_training.tracking.mlflow_names import (
    DEPLOYMENT,
    FLOW,
    FLOW_RUN,
    FLOW_RUN_PAGE,
    FORKED_FROM,
    KIND,
    RETRAINED_FROM,
)
from rl_training.tracking.shipping.figures import EVALUATION

FILE = "report.html"
"""The name of a report among a run's artifacts."""
TEMPLATE = Path(__file__).with_name("page.html")
DECISION_COLUMNS = ["time", "model", "version", "checkpoint", "verdict", "reasons"]
Cell = str | Mapping[str, str]
"""What a cell of a table shows: a text, or a link as `{"text": ..., "address": ...}`."""
_CLASSES = {"PROMOTE": "better", "REJECT": "worse"}


def report(source: str | PathLike[str], out: str | PathLike[str] = FILE) -> Path:
    """Writes the report of a run.

    Args:
        source: The directory of a run; an MLflow run id, a `run_uid` or `runs:/ID`; or `models:/NAME@ALIAS` for the
            run that a registered version comes from.
        out: The file to write; an earlier report there is replaced, and no other file.

    Returns:
        The file.

    Raises:
        TrackingError: MLflow is needed and can't be reached.
        UserError: The source names no training run, the run's record is damaged, or the file can't be written.
    """
    path = Path(out).absolute()
    require_place(path, REPORT)
    write_page(path, REPORT, make_page(read_run(source)))
    return path


def make_report(run_dir: Path, stop_reason: str) -> str:
    """Returns the report of a run whose training has just ended as HTML; its own record does not say so yet."""
    read = read_run(run_dir)
    return make_page(replace(read, run=replace(read.run, state="finished", stop_reason=stop_reason)))


def make_page(read: ReportedRun) -> str:
    """Returns the report of a run as HTML."""
    run, config = read.run, read.run.config
    heading = f"{config.algo.upper()} on {config.env_id}"
    values: dict[str, Any] = {
        "heading": heading,
        "task": f"{run.last_step:,} of {config.total_timesteps:,} steps, {describe_end(read)}, seed {config.seed}",
        "findings": list(list_findings(read)),
        "pictures": list(draw_pictures(run.points, read.evaluation)),
        "tables": [
            ("Decisions", DECISION_COLUMNS, list(list_decisions(read))),
            ("Settings that differ from the defaults", ["setting", "value", "default"], list_settings(config)),
            ("Origin", [], list(list_origin(read))),
            ("Machine and versions", [], list(list_machine(read))),
        ],
        "command": f"rl-training reproduce {run.run_uid}",
        "notes": list(read.notes),
    }
    film = None if read.film is None else base64.b64encode(read.film).decode()
    return render_page(TEMPLATE, heading, REPORT, film=film, **_make_printable(values))


def describe_end(read: ReportedRun) -> str:
    """Returns how a run ended, in words."""
    reason = read.run.stop_reason
    return read.run.state if reason in (None, "completed") else f"{read.run.state} ({reason})"


def list_findings(read: ReportedRun) -> Iterator[tuple[str, str]]:
    """Yields what is most important, each with the class of its colour."""
    if read.version is not None:
        checkpoint = read.version.checkpoint
        yield "", f"{read.version} is the checkpoint {checkpoint or 'of an unknown step'} of this run"
    if read.evaluation is not None:
        yield "", format_evaluation(select_evaluation_numbers(read.evaluation.to_dict()))
    elif evaluated := read.run.points.get(EVALUATION):
        step = max(evaluated)
        yield "", f"not evaluated on held-out episodes; the last periodic evaluation returned {evaluated[step]:,.2f}"
    else:
        yield "", "not evaluated"
    for record in _select_decisions(read)[-1:]:
        verdict = read_verdict(record)
        text = f"{format_verdict(verdict.kind, record['forced'], verdict.judged_by)} for {record['model']}"
        yield _CLASSES.get(verdict.kind, ""), text
    for warning in read_health_warnings(read.metadata):
        yield "worse", f"warning: {warning}"
    for entry in read.metadata.get(INEXACT, ()):
        yield "worse", f"not exact: {explain_inexact(entry)}"


def _select_decisions(read: ReportedRun) -> Sequence[Mapping[str, Any]]:
    """Returns the decisions on what the report is about, oldest first."""
    if read.version is None:
        return read.decisions
    return [record for record in read.decisions if record["decision_id"] in read.version.decisions]


def list_decisions(read: ReportedRun) -> Iterator[list[str]]:
    """Yields a row for each decision on a candidate of the run."""
    numbers = {decision: one.number for one in read.versions for decision in one.decisions}
    for record in read.decisions:
        verdict = read_verdict(record)
        kind = format_verdict(verdict.kind, record["forced"], verdict.judged_by)
        step = record["candidate"].get("num_timesteps")
        checkpoint = f"step {step:,}" if isinstance(step, int) else "not known"
        number = numbers.get(record["decision_id"], "no longer registered")
        yield [record["time"], record["model"], number, checkpoint, kind, "; ".join(verdict.reasons)]


def list_settings(config: TrainConfig) -> list[list[str]]:
    """Returns a row for each setting that differs from its default: its name, its value, and the default."""
    required = {"env_id": config.env_id, "total_timesteps": config.total_timesteps}
    differences = find_differences(type(config).model_construct(**_complete_defaults(config, required)), config)
    rows = [[key, format_value(value), "-"] for key, value in required.items()]
    return rows + [[each.key, format_value(each.after), format_value(each.before)] for each in differences]


def _complete_defaults(config: TrainConfig, required: Mapping[str, Any]) -> dict[str, Any]:
    fields = type(config).model_fields
    return {
        name: required[name] if name in required else field.get_default(call_default_factory=True, validated_data={})
        for name, field in fields.items()
    }


def list_origin(read: ReportedRun) -> Iterator[Sequence[Cell]]:
    """Yields where a run comes from and where it is."""
    run, tags = read.run, read.tags
    yield ["run_uid", run.run_uid]
    yield ["MLflow run", run.run_id or "none"]
    yield ["directory", run.run_dir or "not known"]
    yield ["started", run.started.strftime("%Y-%m-%d %H:%M UTC")]
    if command := _find_command(read):
        yield ["command", command]
    if FLOW_RUN in tags:
        yield ["flow run", _make_link(tags[FLOW_RUN], tags.get(FLOW_RUN_PAGE, ""))]
    names = {"flow": FLOW, "deployment": DEPLOYMENT, "kind": KIND}
    yield from ([name, tags[tag]] for name, tag in names.items() if tag in tags)
    if origin := run.origin or tags.get(FORKED_FROM):
        yield ["continues run", origin]
    if RETRAINED_FROM in tags:
        yield ["retrained from", tags[RETRAINED_FROM]]
    if run.sweep is not None:
        yield ["trial of sweep", f"{run.trial} of {run.sweep}, {run.phase}"]
    for version in read.versions:
        checkpoint = f", the checkpoint {version.checkpoint}" if version.checkpoint else ""
        yield ["registered as", f"{version}{checkpoint}"]


def _find_command(read: ReportedRun) -> str | None:
    """Returns the command that started a run; None if it is not known, or a worker's without a deployment."""
    if deployment := read.tags.get(DEPLOYMENT):
        return shlex.join(["prefect", "deployment", "run", deployment])
    command = [str(word) for word in read.metadata.get("command", ())]
    is_workers = bool(command) and Path(command[0]).parent.name == "prefect"  # such as .../prefect/engine.py
    return None if is_workers or not command else shlex.join(command)


def _make_link(text: str, address: str) -> Cell:
    return {"text": text, "address": address} if urlsplit(address).scheme in ("http", "https") else text


def list_machine(read: ReportedRun) -> Iterator[list[str]]:
    """Yields the machine, the commit, and the versions that a run was trained with."""
    metadata, tags = read.metadata, read.tags
    machine = metadata.get("machine") or {}
    yield ["host", str(metadata.get("hostname") or tags.get("host", "not known"))]
    for name, value in (
        ("processor", machine.get("cpu_model")),
        ("device", read.device or metadata.get("device")),
        ("threads", metadata.get("threads")),
        ("libraries of products", ", ".join(map(str, machine.get("libraries", ())))),
        ("platform", metadata.get("platform")),
    ):
        if value:
            yield [name, str(value)]
    git = metadata.get("git")
    commit = git["commit"] if git else tags.get("git_commit")
    dirty = git["dirty"] if git else tags.get("git_dirty") == "true"
    yield ["commit", f"{commit}{', with changes' if dirty else ''}" if commit else "none"]
    yield from ([name, version] for name, version in sorted(read.run.versions.items()))


def _make_printable(value: Any) -> Any:
    """Returns the value with all text without control characters; the pictures are ours, and have line breaks."""
    if isinstance(value, str):
        return value if value.startswith("<svg") else printable(value)
    if isinstance(value, list | tuple):
        return [_make_printable(each) for each in value]
    return {key: _make_printable(each) for key, each in value.items()} if isinstance(value, dict) else value
