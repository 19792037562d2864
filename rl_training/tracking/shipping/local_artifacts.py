"""Artifacts in a folder of this machine: MLflow copies them there and leaves them to the system's memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rl_training.system.durable_files import sync_directory, sync_file


def sync_stored(artifact_uri: str, names: Iterable[str]) -> None:
    """Brings artifacts to disk if the store keeps them here; a server looks after its own.

    Args:
        artifact_uri: Of a run or a model.
        names: Of its files, with folders, that were sent.
    """
    address = urlsplit(artifact_uri)
    if address.scheme not in ("", "file"):
        return
    root = Path(unquote(address.path))
    folders = {root, root.parent, root.parent.parent}  # the store makes a folder for each run and model
    for name in names:
        path = root / name
        sync_file(path)
        folders.update(folder for folder in path.parents if folder.is_relative_to(root))
    for folder in folders:
        sync_directory(folder)
