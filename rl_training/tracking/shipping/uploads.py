"""What of a run directory goes to MLflow as files: checkpoints, evaluations, and whatever lies in `artifacts/`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training import run_layout
from rl_training.runtime.checkpoint.manifest import MANIFEST, is_shard
from rl_training.system.durable_files import link_or_copy
from rl_training.tracking.mlflow_store import sync_artifacts
from rl_training.tracking.shipping.logged_models import queue_model

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TOP_LEVEL = (run_layout.CONFIG, run_layout.METADATA, f"{run_layout.CHECKPOINTS}/{run_layout.BEST}")
"""Files outside of `artifacts/` that go too. The last names the checkpoint with the best periodic evaluation."""


def list_pending_artifacts(run_dir: Path, sent: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the name and fingerprint of each file that MLflow does not have, or has in an older version.

    Args:
        run_dir: The run's directory.
        sent: Fingerprints of the files that MLflow has, by name.
    """
    root = run_dir / run_layout.ARTIFACTS
    candidates = [(name, run_dir / name) for name in TOP_LEVEL]
    candidates += [(path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*"))]
    for name, path in candidates:
        if not path.is_file() or path.name.startswith("."):
            continue
        state = path.stat()
        fingerprint = f"{state.st_size}:{state.st_mtime_ns}"
        if sent.get(name) != fingerprint:
            yield name, fingerprint


def send_artifact(client: MlflowClient, run_id: str, run_dir: Path, name: str) -> None:
    """Sends one file that `list_pending_artifacts` named."""
    path = run_dir / name if name in TOP_LEVEL else run_dir / run_layout.ARTIFACTS / name
    folder = Path(name).parent.as_posix()
    client.log_artifact(run_id, str(path), None if folder == "." else folder)
    sync_artifacts(client.get_run(run_id).info.artifact_uri, [name])


def list_pending_checkpoints(run_dir: Path, sent: list[str]) -> list[Path]:
    """Returns the finished checkpoints that MLflow does not have, by name."""
    found = sorted((run_dir / run_layout.CHECKPOINTS).glob(f"{run_layout.STEP}*"))
    return [path for path in found if (mark := fingerprint(path)) is not None and mark not in sent]


def fingerprint(checkpoint: Path) -> str | None:
    """Returns what tells a checkpoint from another one of the same step; None where it has been pruned."""
    try:
        manifest = (checkpoint / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    return f"{checkpoint.name}:{hashlib.sha256(manifest).hexdigest()[:16]}"


def send_checkpoint(client: MlflowClient, run_id: str, run_dir: Path, checkpoint: Path) -> bool:
    """Sends a checkpoint, its manifest last: without a manifest it does not count as one.

    Its replay shards go first, to the folder that the run's checkpoints share; what MLflow has there is not sent again.
    Training may prune the checkpoint meanwhile, so its files are linked to a place of our own first; what its logged
    model is made of stays there.

    Returns:
        Whether it was sent; False where it was pruned before.
    """
    staged = run_dir / run_layout.UPLOADS / checkpoint.name
    shutil.rmtree(staged.parent, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        files = sorted(checkpoint.iterdir())
        there = _stored_shards(client, run_id) if any(is_shard(path.name) for path in files) else {}
        for path in files:
            if there.get(path.name) != path.stat().st_size:
                link_or_copy(path, staged / path.name)
        if not (staged / MANIFEST).exists():
            return False
        folder = f"{run_layout.CHECKPOINTS}/{checkpoint.name}"
        sent = []
        for path in sorted(staged.iterdir(), key=lambda path: (path.name == MANIFEST, not is_shard(path.name))):
            place = run_layout.REPLAY if is_shard(path.name) else folder
            client.log_artifact(run_id, str(path), place)
            sent.append(f"{place}/{path.name}")
        sync_artifacts(client.get_run(run_id).info.artifact_uri, sent)
        queue_model(run_dir, staged)
        return True
    except FileNotFoundError:
        return False
    finally:
        shutil.rmtree(staged.parent, ignore_errors=True)


def _stored_shards(client: MlflowClient, run_id: str) -> dict[str, int | None]:
    """Returns the size of each shard that MLflow has, by name."""
    return {Path(entry.path).name: entry.file_size for entry in client.list_artifacts(run_id, run_layout.REPLAY)}
