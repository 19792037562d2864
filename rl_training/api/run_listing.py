"""Lists the runs of the home or of MLflow, with what they trained and how they ended."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl_training import run_layout
from rl_training.config.document import Scalar, parse_number
from rl_training.config.parsing import read_yaml
from rl_training.errors import CheckpointError, ConfigError, UserError, printable
from rl_training.runs.health_warnings import HEALTH, KINDS, Kind, read_health_warnings
from rl_training.runs.locks import is_locked
from rl_training.runs.metadata import list_home, read_metadata
from rl_training.runtime.checkpoint.best_checkpoint import best_path
from rl_training.runtime.checkpoint.manifest import read_settings_text
from rl_training.runtime.checkpoint.reading import list_checkpoints
from rl_training.runtime.loop_parts.periodic_evaluation import has_reached_return
from rl_training.security.untrusted_json import NotReadable, open_plain_file, read_json
from rl_training.tracking.mlflow_run import RUN_UID, is_training_run
from rl_training.tracking.mlflow_store import connect, iterate_runs, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.record_schemas import Address, Status

if TYPE_CHECKING:
    from mlflow.entities import Run

State = Literal["running", "finished", "stopped", "failed", "killed", "unreadable"]
"""`stopped`: by a signal or a callback, or, without tracking, before its steps were done or its return was reached.
`killed`: its process ended without recording how. `unreadable`: its record is damaged."""

SortKey = Literal["started", "return", "best", "success", "steps", "env", "algo", "state"]


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run in a list. A value that is not known is None."""

    run_uid: str | None = None
    """The identity of the run, which commands take as a source."""
    run_id: str | None = None
    """The id of the run in MLflow."""
    run_dir: str
    env_id: str = ""
    algo: str = ""
    seed: int | None = None
    num_timesteps: int | None = None
    """The step of the newest checkpoint; from MLflow, the steps that the run was to train for."""
    state: State
    best_return: float | None = None
    """The best mean return of a periodic evaluation; not known from MLflow."""
    return_mean: float | None = None
    """The mean return of the held-out evaluation."""
    success_rate: float | None = None
    """The success rate of the held-out evaluation."""
    health: tuple[Kind, ...] = ()
    """The kinds of warnings about its training that hold."""
    started: str | None = None
    """When the run began, in ISO form, UTC."""
    problem: str = ""
    """Why the run's record can't be read."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


_SORT: Mapping[SortKey, tuple[Callable[[ListedRun], Any], bool]] = {
    "started": (lambda run: run.started, True),
    "return": (lambda run: run.return_mean, True),
    "best": (lambda run: run.best_return, True),
    "success": (lambda run: run.success_rate, True),
    "steps": (lambda run: run.num_timesteps, True),
    "env": (lambda run: run.env_id or None, False),
    "algo": (lambda run: run.algo or None, False),
    "state": (lambda run: run.state, False),
}
"""The value to sort by, and whether the largest comes first."""


def list_runs(
    *,
    mlflow: bool = False,
    env: str | None = None,
    algo: str | None = None,
    state: State | None = None,
    sort: SortKey = "started",
) -> list[ListedRun]:
    """Returns the runs of the home, or those in MLflow, that match all filters.

    Args:
        mlflow: Whether to list the runs in MLflow instead.
        env: The id of the environment, with or without its module; `*` stands for any text.
        algo: The algorithm.
        state: The state of the run.
        sort: The value to sort by: numbers and times from the largest, texts from A. Runs without the value come last.

    Raises:
        TrackingError: MLflow can't be reached.
        UserError: The home can't be used.
    """
    found = [
        run
        for run in (_read_mlflow() if mlflow else _read_home())
        if (env is None or _matches(run.env_id, env))
        and (algo is None or run.algo == algo)
        and (state is None or run.state == state)
    ]
    value, largest_first = _SORT[sort]
    known = sorted((run for run in found if value(run) is not None), key=value, reverse=largest_first)
    return known + [run for run in found if value(run) is None]


def _matches(env_id: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (env_id, env_id.rpartition(":")[2]))


def _read_home() -> Iterator[ListedRun]:
    for run_dir in list_home():
        try:
            yield _read_run(run_dir)
        except (UserError, CheckpointError, ConfigError, NotReadable, OSError, ValueError, OverflowError) as error:
            yield ListedRun(run_dir=str(run_dir), state="unreadable", problem=printable(str(error)))


def _read_run(run_dir: Path) -> ListedRun:
    metadata = read_metadata(run_dir)
    best = best_path(run_dir / run_layout.CHECKPOINTS)
    held_out = _read_if_there(run_dir / run_layout.ARTIFACTS / run_layout.HELD_OUT)
    address = _read_if_there(run_dir / run_layout.MLFLOW, Address)
    seed, steps = metadata.get("seed"), find_newest_step(run_dir)
    return ListedRun(
        run_uid=printable(metadata["run_uid"]),
        run_id=printable(address["run_id"]) if address else None,
        run_dir=str(run_dir),
        env_id=printable(str(metadata.get("env_id", ""))),
        algo=printable(str(metadata.get("algo", ""))),
        seed=seed if isinstance(seed, int) else None,
        num_timesteps=steps,
        state=find_state(run_dir, steps or 0),
        best_return=best[1] if best else None,
        return_mean=_as_number(held_out.get("return_mean")),
        success_rate=_as_number(held_out.get("success_rate")),
        health=tuple(warning.kind for warning in read_health_warnings(metadata)),
        started=datetime.fromisoformat(metadata["started"]).astimezone(UTC).isoformat(timespec="seconds"),
    )


def find_state(run_dir: Path, steps: int) -> State:
    """Returns the state of the run in a directory, of which `steps` is the step of the newest checkpoint."""
    if is_locked(run_dir):
        return "running"
    status = _read_if_there(run_dir / run_layout.STATUS, Status)
    if status:
        return name_state(status["status"], status["stop_reason"])
    if (run_dir / run_layout.TRACKING).exists():
        return "killed"
    checkpoints, _ = list_checkpoints(run_dir / run_layout.CHECKPOINTS)
    if checkpoints and has_reached_return(checkpoints[0]):
        return "finished"
    path = run_dir / run_layout.CONFIG
    with open_plain_file(path) as file:
        total = read_yaml(read_settings_text(path, file), str(path)).entries.get("total_timesteps")
    wanted = parse_number(str(total.value)) if isinstance(total, Scalar) else None
    return "finished" if wanted is not None and steps >= wanted else "stopped"


def name_state(status: str, stop_reason: str | None) -> State:
    """Returns the state of a run in MLflow."""
    if status in ("RUNNING", "SCHEDULED"):
        return "running"
    if status == "FAILED":
        return "failed"
    if stop_reason in ("signal", "callback", "paused"):
        return "stopped"
    return "killed" if status == "KILLED" else "finished"


def find_newest_step(run_dir: Path) -> int | None:
    """Returns the step of the newest checkpoint in a run's directory, or None if there is none."""
    names = (path.name.removeprefix(run_layout.STEP) for path in run_dir.glob(f"{run_layout.CHECKPOINTS}/step_*"))
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _read_if_there(path: Path, form: Any = dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a JSON file, or nothing if it does not exist.

    Raises:
        UserError: The file can't be read; the message names it.
    """
    try:
        found: dict[str, Any] = read_json(path, form)
    except FileNotFoundError:
        return {}
    except NotReadable as error:
        raise UserError(f"{path.name}: {error}") from None
    return found


def _as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _read_mlflow() -> Iterator[ListedRun]:
    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, "the runs"):
        client = connect(uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = iterate_runs(client, experiments, f"tags.{RUN_UID} LIKE '%'", newest_first=True)
        yield from map(_convert_run, filter(is_training_run, runs))


def _convert_run(run: Run) -> ListedRun:
    tags, metrics = run.data.tags, run.data.metrics
    seed = parse_number(tags.get("seed", ""))
    started = datetime.fromtimestamp(run.info.start_time / 1000, UTC).isoformat(timespec="seconds")
    steps = parse_number(run.data.params.get("total_timesteps", ""))
    return ListedRun(
        run_uid=printable(tags.get(RUN_UID, "")),
        run_id=run.info.run_id,
        run_dir=printable(tags.get("run_dir", "")),
        env_id=printable(tags.get("env_id", "")),
        algo=printable(tags.get("algo", "")),
        seed=seed if isinstance(seed, int) else None,
        num_timesteps=steps if isinstance(steps, int) else None,
        state=name_state(run.info.status, tags.get("stop_reason")),
        return_mean=_as_number(metrics.get("heldout/return_mean")),
        success_rate=_as_number(metrics.get("heldout/success_rate")),
        health=tuple(kind for kind in KINDS if f"\n{kind}: " in f"\n{tags.get(HEALTH, '')}"),
        started=started,
    )
