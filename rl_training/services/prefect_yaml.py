"""Reading a `prefect.yaml` and reporting its faults; Prefect itself silently skips what it can't use."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from rl_training.config.parsing import describe_syntax_error
from rl_training.config.suggestions import find_similar_word
from rl_training.errors import ConfigError, UserError
from rl_training.services.moved_entrypoints import MOVED
from rl_training.services.schedules import RunTimes, compute_run_times

FILE = "prefect.yaml"
TAG = "rl-training"
"""The tag of our deployments; flow runs with it must send heartbeats."""
HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
HEARTBEAT_SECONDS = 30
"""Time between two heartbeats of a flow run; the smallest value that Prefect allows."""

KEYS = frozenset({
    "name", "version", "version_type", "tags", "description", "schedule", "schedules", "paused", "concurrency_limit",
    "flow_name", "entrypoint", "parameters", "enforce_parameter_schema", "build", "push", "pull", "work_pool",
    "triggers", "sla",
})  # fmt: skip
"""The keys of a deployment that Prefect knows; it ignores all others."""
PARALLEL = "trial-flow"
"""The flow whose flow runs are to run at the same time."""
LIMIT_KEYS = frozenset({"limit", "collision_strategy", "grace_period_seconds"})
SOURCES = ("config", "file")
"""The parameters that name settings: of a run, and of a sweep."""
STRATEGIES = ("ENQUEUE", "CANCEL_NEW")


@dataclass(frozen=True)
class Deployment:
    """A deployment of the file."""

    name: str
    """The full name, with the flow's: `train-flow/default`."""
    pool: str
    queue: str | None
    """The queue of the pool; None for the pool's default."""
    limit: int | None
    schedules: tuple[RunTimes, ...]
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Returns the deployment, its schedules and its warnings as text."""
        indented = [line for schedule in self.schedules for line in schedule.lines()]
        indented += [f"warning: {text}" for text in self.warnings]
        named = f"{self.name}, queue {self.queue}" if self.queue else self.name
        return [named, *(f"    {line}" for line in indented)]


def find_prefect_yaml() -> Path:
    """Returns the `prefect.yaml` of the working directory or, if there is none, the one in the package."""
    here, package = Path(FILE), Path(__file__).resolve().parents[1]
    installed, repository = package / "deployments" / FILE, package.parent / FILE
    return here.absolute() if here.is_file() else installed if installed.is_file() else repository


def read_prefect_yaml(file: Path, now: datetime) -> list[Deployment]:
    """Returns the deployments of a `prefect.yaml`.

    Args:
        file: The file.
        now: The time, with its zone, after which the next runs of each schedule are computed.

    Raises:
        UserError: The file has faults; the message has one line for each.
    """
    try:
        text = file.read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise UserError(describe_syntax_error(error, text, str(file))) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file}: can't be read: {' '.join(str(error).split())}") from None
    entries = document.get("deployments") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{file}: expected a list of deployments under the key deployments")
    deployments, faults = [], []
    for position, entry in enumerate(entries, start=1):
        where = entry.get("name", position) if isinstance(entry, Mapping) else position
        try:
            deployments.append(_read_deployment(entry, now))
        except UserError as error:
            faults += [f"{file}: deployment {where}: {line}" for line in str(error).splitlines()]
    names = [deployment.name for deployment in deployments]
    faults += [f"{file}: two deployments are named {name}" for name in sorted(set(names)) if names.count(name) > 1]
    if faults:
        raise UserError("\n".join(faults))
    return deployments


def _read_deployment(entry: Any, now: datetime) -> Deployment:
    if not isinstance(entry, Mapping):
        raise UserError(f"expected a mapping, got {entry!r}")
    if unknown := sorted(set(map(str, entry)) - KEYS):
        close = find_similar_word(unknown[0], sorted(KEYS))
        raise UserError(f"unknown key {', '.join(unknown)}" + (f"; did you mean {close}?" if close else ""))
    pool = entry["work_pool"].get("name") if isinstance(entry.get("work_pool"), Mapping) else None
    for key, value in (("name", entry.get("name")), ("entrypoint", entry.get("entrypoint")), ("work_pool.name", pool)):
        if not isinstance(value, str) or not value:
            raise UserError(f"{key}: is required, as text")
    flow = _load_flow(entry["entrypoint"])
    _check_heartbeat(entry)
    schedules, parameters = [], [entry.get("parameters") or {}]
    for schedule in _list_schedules(entry):
        schedules.append(compute_run_times(schedule, now))
        parameters.append({**parameters[0], **(schedule.get("parameters") or {})})
    warnings = [text for given in parameters for text in _check_parameters(flow, given)]
    limit = _read_limit(entry)
    if limit is None and flow.name != PARALLEL:
        warnings.append("it has no concurrency_limit: a second flow run fails while the first one trains")
    name = f"{flow.name}/{entry['name']}"
    queue = entry["work_pool"].get("work_queue_name")
    if not isinstance(queue, str | None):
        raise UserError(f"work_pool.work_queue_name: expected text, got {queue!r}")
    return Deployment(name, str(pool), queue, limit, tuple(schedules), tuple(dict.fromkeys(warnings)))


def _load_flow(entrypoint: str) -> Any:
    from prefect.flows import load_flow_from_entrypoint

    try:
        return load_flow_from_entrypoint(entrypoint)
    except Exception as error:
        if entrypoint in MOVED:
            raise UserError(f"entrypoint {entrypoint!r} has moved; write {MOVED[entrypoint]}") from None
        raise UserError(f"entrypoint {entrypoint!r} is not a flow: {type(error).__name__}: {error}") from None


def _check_heartbeat(entry: Mapping[str, Any]) -> None:
    """Requires the heartbeat frequency that the crash automations rely on."""
    environment = (entry["work_pool"].get("job_variables") or {}).get("env") or {}
    seconds = str(environment.get(HEARTBEAT, ""))
    if TAG in (entry.get("tags") or []) and seconds != str(HEARTBEAT_SECONDS):
        raise UserError(
            f"flow runs with the tag {TAG} must send a heartbeat every {HEARTBEAT_SECONDS} s, or they are marked as "
            f'Crashed; set work_pool.job_variables.env.{HEARTBEAT} to "{HEARTBEAT_SECONDS}", got {seconds or "none"}'
        )


def _read_limit(entry: Mapping[str, Any]) -> int | None:
    limit = entry.get("concurrency_limit")
    if isinstance(limit, Mapping):
        if unknown := sorted(set(limit) - LIMIT_KEYS):
            raise UserError(f"concurrency_limit: unknown key {', '.join(unknown)}; Prefect takes {sorted(LIMIT_KEYS)}")
        strategy = limit.get("collision_strategy", STRATEGIES[0])
        if strategy not in STRATEGIES:
            raise UserError(f"concurrency_limit.collision_strategy: got {strategy!r}, expected one of {STRATEGIES}")
        limit = limit.get("limit")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UserError(f"concurrency_limit: got {limit!r}, expected a whole number above 0")
    return limit


def _list_schedules(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    many, one = entry.get("schedules"), entry.get("schedule")
    if not isinstance(many, list | None):
        raise UserError(f"schedules: expected a list, got {many!r}")
    for schedule in [*(many or []), *([one] if one is not None else [])]:
        if not isinstance(schedule, Mapping):
            raise UserError(f"schedules: expected mappings such as {{cron: '0 3 * * *'}}, got {schedule!r}")
        yield schedule


def _check_parameters(flow: Any, parameters: Any) -> Iterator[str]:
    """Checks a deployment's parameters against its flow, and yields warnings."""
    if not isinstance(parameters, Mapping):
        raise UserError(f"parameters: expected a mapping, got {parameters!r}")
    known = list(inspect.signature(flow.fn).parameters)
    if unknown := sorted(set(map(str, parameters)) - set(known)):
        raise UserError(f"parameters: {flow.name} takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    name, source = next(((key, parameters[key]) for key in SOURCES if parameters.get(key) is not None), ("", None))
    if source is None:
        return
    if isinstance(source, str) and Path(source).is_absolute() and not Path(source).exists():
        yield f"{name} {source} is not on this machine; a worker must be able to read it"
        return
    from rl_training.flows.train import read_settings
    from rl_training.sweeps.loading import load_sweep

    try:
        if name == "file":
            load_sweep(source, parameters.get("overrides") or {})
        else:
            read_settings(source, parameters.get("overrides"))
    except ConfigError as error:
        raise UserError("\n".join(f"parameters: {line}" for line in str(error).splitlines())) from None
