"""MLflow's page of a run, a checkpoint or a registered version: what follows the server's own address in a link."""

from __future__ import annotations

from pathlib import Path

from rl_training import run_layout
from rl_training.errors import UserError
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import RunSource, find_version, parse_source, translate_mlflow_errors
from rl_training.tracking.mlflow_store import connect, run_fragment, version_fragment


def find_page(source: str | None, uri: str) -> str:
    """Returns the page that shows what `source` names in a store; the list of experiments for None.

    Args:
        source: A run's directory, an MLflow run id, `runs:/ID`, `models:/NAME@ALIAS` or `models:/NAME/VERSION`.
        uri: The store.

    Raises:
        UserError: It names nothing there, or the directory is not of a run that is in MLflow.
        TrackingError: MLflow can't be reached.
    """
    if source is None:
        return ""
    parsed = parse_source(_run_of(Path(source)) if Path(source).is_dir() else source)
    with translate_mlflow_errors(uri, source):
        client = connect(uri)
        if isinstance(parsed, RunSource):
            return run_fragment(client.get_run(parsed.run_id).info.experiment_id, parsed.run_id)
        return version_fragment(parsed.name, find_version(client, parsed).version)


def _run_of(run_dir: Path) -> str:
    try:
        known = json_files.read_json(run_dir / run_layout.MLFLOW)
        return str((known or {})["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{run_dir} is not the directory of a run that is in MLflow (its {run_layout.MLFLOW} names none)"
        ) from None
