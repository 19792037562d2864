"""Uploads the files of a run directory: checkpoints, evaluations and everything in `artifacts/`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training import run_layout
from rl_training.runtime.checkpoint.manifest import MANIFEST, is_shard
from rl_training.system.durable_files import link_or_copy
from rl_training.tracking.shipping.artifact_files import sync_artifacts
from rl_training.tracking.shipping.logged_models import queue_model

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TOP_LEVEL = (run_layout.CONFIG, run_layout.METADATA, f"{run_layout.CHECKPOINTS}/{run_layout.BEST}")
"""Files outside of `artifacts/` that go too. The last names the checkpoint with the best periodic evaluation."""


def list_pending_artifacts(run_dir: Path, sent: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the name and fingerprint of each file that `sent` lacks or has with another fingerprint."""
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
    """Sends a file that `list_pending_artifacts` yielded."""
    path = run_dir / name if name in TOP_LEVEL else run_dir / run_layout.ARTIFACTS / name
    folder = Path(name).parent.as_posix()
    client.log_artifact(run_id, str(path), None if folder == "." else folder)
    sync_artifacts(client.get_run(run_id).info.artifact_uri, [name])


def list_pending_checkpoints(run_dir: Path, sent: list[str]) -> list[Path]:
    """Returns the complete checkpoints that were not sent yet, sorted by name."""
    found = sorted((run_dir / run_layout.CHECKPOINTS).glob(f"{run_layout.STEP}*"))
    return [path for path in found if (mark := compute_fingerprint(path)) is not None and mark not in sent]


def compute_fingerprint(checkpoint: Path) -> str | None:
    """Returns a text that identifies a checkpoint among others of the same step; None if it has been pruned."""
    try:
        manifest = (checkpoint / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    return f"{checkpoint.name}:{hashlib.sha256(manifest).hexdigest()[:16]}"


def send_checkpoint(client: MlflowClient, run_id: str, run_dir: Path, checkpoint: Path) -> bool:
    """Sends a checkpoint.

    The manifest goes last, because a folder without a manifest does not count as a checkpoint. Replay shards go first,
    to the folder that all checkpoints of the run share; shards that MLflow has are not sent again. Training may prune
    the checkpoint at any time, so its files are first linked into a folder of the shipper, from which the checkpoint's
    logged model is made later.

    Returns:
        Whether the checkpoint was sent; False if it was pruned before.
    """
    staged = run_dir / run_layout.UPLOADS / checkpoint.name
    shutil.rmtree(staged.parent, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        files = sorted(checkpoint.iterdir())
        there = _list_stored_shards(client, run_id) if any(is_shard(path.name) for path in files) else {}
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


def _list_stored_shards(client: MlflowClient, run_id: str) -> dict[str, int | None]:
    """Returns the size in bytes of each shard in MLflow, by name."""
    return {Path(entry.path).name: entry.file_size for entry in client.list_artifacts(run_id, run_layout.REPLAY)}
