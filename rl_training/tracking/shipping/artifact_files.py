"""Uploaded artifacts in a store that is a local folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rl_training.system.durable_files import sync_directory, sync_file


def sync_artifacts(artifact_uri: str, names: Iterable[str]) -> None:
    """Flushes uploaded artifacts to disk if the store is a local folder, because MLflow does not.

    Args:
        artifact_uri: Artifact location of a run or model.
        names: Paths of the uploaded files below that location.
    """
    address = urlsplit(artifact_uri)
    if address.scheme not in ("", "file"):
        return
    root = Path(unquote(address.path))
    folders = {root, root.parent, root.parent.parent}  # the store creates a folder for each run and model
    for name in names:
        path = root / name
        sync_file(path)
        folders.update(folder for folder in path.parents if folder.is_relative_to(root))
    for folder in folders:
        sync_directory(folder)
