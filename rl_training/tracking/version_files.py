"""Downloads the files of a registered version, and checks that MLflow would run nothing but this package.

Anyone who can write to a store can name another loader in a version's `MLmodel`, or add code or requirements that are
installed when the version is served. This module runs nothing of a version: it reads the files as text and compares
them with the files that `save_model` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rl_training.config.document import NULLS, ListNode, MapNode, Node
from rl_training.config.parsing import decode, read_yaml
from rl_training.errors import CheckpointError, ConfigError, one_line
from rl_training.run_layout import CONFIG
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint
from rl_training.runtime.checkpoint.manifest import MANIFEST, POLICY
from rl_training.security.untrusted_json import open_plain_file
from rl_training.system.download_directories import make_download_directory
from rl_training.tracking.mlflow_store import UNKNOWN_CODES, explain

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

MODEL_DATA = "data/checkpoint"
"""Folder of a registered version that holds its own copy of the checkpoint, without training state."""

LOADER = "rl_training.tracking.pyfunc"
"""The module by which MLflow loads a version; every registered version names it."""

SERVED = (MANIFEST, CONFIG, POLICY)
"""The files of a checkpoint that a registered version contains."""

DESCRIPTION = ("MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt")
"""The files that MLflow adds to them."""

MOST_BYTES = 65_536
"""Limit on the size of each file of the description; those of our versions have less than 1,000 bytes."""

_FREE = (
    "artifact_path", "run_id", "utc_time_created", "model_uuid", "mlflow_version", "model_size_bytes", "model_id",
    "signature",
)  # fmt: skip
"""Keys of `MLmodel` that have no influence on the code that is run."""
_REQUIREMENT = re.compile(r"(mlflow|rl-training)==[\w.+!-]+")
_TOOL = re.compile(r"(python|pip|setuptools|wheel)([<=]?=[\w.+!-]+)?")


def download_version_policy(client: MlflowClient, uri: str, version: ModelVersion) -> Checkpoint:
    """Downloads and verifies a version's own copy of the checkpoint: weights, normaliser and settings."""
    checkpoint = open_checkpoint(_download_files(client, uri, version, SERVED, MODEL_DATA), policy_only=True)
    return replace(checkpoint, source=f"models:/{version.name}/{version.version}")


def download_verified_copy(client: MlflowClient, uri: str, version: ModelVersion) -> Checkpoint:
    """Downloads a version's own copy of the checkpoint, and checks the code that MLflow would run for the version.

    Raises:
        CheckpointError: The version has other files than ours, MLflow would run or install something else, or the copy
            is damaged.
    """
    there = set(_list_files(client, uri, version))
    ours = {*DESCRIPTION, *(f"{MODEL_DATA}/{name}" for name in SERVED)}
    if there != ours:
        more, missing = ", ".join(sorted(there - ours)[:3]), ", ".join(sorted(ours - there)[:3])
        raise CheckpointError(f"it has {more}, which no version of ours has" if more else f"it has no {missing}")
    check_description(_download_files(client, uri, version, DESCRIPTION))
    return download_version_policy(client, uri, version)


def _download_files(
    client: MlflowClient, uri: str, version: ModelVersion, names: Iterable[str], folder: str = ""
) -> Path:
    """Downloads the named files of a version, and no others, into a new directory; returns the directory."""
    from mlflow.artifacts import download_artifacts

    target = make_download_directory() / PurePosixPath(folder).name
    with _locate_files(client, uri, version) as location:
        for name in names:
            address = "/".join(part for part in (location, folder, name) if part)
            download_artifacts(artifact_uri=address, dst_path=str(target), tracking_uri=uri, registry_uri=uri)
    return target


def _list_files(client: MlflowClient, uri: str, version: ModelVersion) -> list[str]:
    """Returns the paths of a version's files; a folder that our versions don't have is listed without its content."""
    from mlflow.artifacts import list_artifacts

    found: list[str] = []
    folders = [""]
    with _locate_files(client, uri, version) as location:
        for folder in folders:  # the loop appends the folders that our versions have
            address = "/".join(part for part in (location, folder) if part)
            for entry in list_artifacts(artifact_uri=address, tracking_uri=uri):
                path = "/".join(part for part in (folder, PurePosixPath(entry.path).name) if part)
                ours = entry.is_dir and f"{MODEL_DATA}/".startswith(f"{path}/")
                (folders if ours else found).append(path)
    return found


@contextmanager
def _locate_files(client: MlflowClient, uri: str, version: ModelVersion) -> Iterator[str]:
    """Yields the address of a version's files.

    Raises:
        CheckpointError: The block needs a file that does not exist.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield client.get_model_version_download_uri(version.name, version.version).rstrip("/")
    except (OSError, MlflowException) as error:
        if isinstance(error, MlflowException) and error.error_code not in UNKNOWN_CODES:
            raise
        raise CheckpointError(
            f"version {version.version} of {version.name} has no files that are ours: {explain(error, uri)}"
        ) from error


def check_description(root: Path) -> None:
    """Checks that MLflow would treat a version like those that `save_model` writes.

    Args:
        root: Directory with the files named in `DESCRIPTION`.

    Raises:
        CheckpointError: MLflow would run or install something else, or a file can't be read.
    """
    for difference in _find_differences(root):
        raise CheckpointError(f"it is not as rl_training writes a version: {difference}; nothing of it was run")


def _find_differences(root: Path) -> Iterator[str]:
    """Yields the ways in which a version differs from those that `save_model` writes."""
    model = _read_yaml(root / "MLmodel")
    for key, value in model.items():
        if key != "flavors" and key not in _FREE and value not in (None, "false"):
            yield f"MLmodel has {key}"
    flavors = model.get("flavors")
    if not isinstance(flavors, dict) or list(flavors) != ["python_function"]:
        yield "MLmodel has other flavors than python_function"
        return
    expected = {
        "data": MODEL_DATA,
        "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
        "loader_module": LOADER,
    }
    flavor = flavors["python_function"]
    if not isinstance(flavor, dict):
        yield "MLmodel has no python_function"
        return
    for key in {**expected, **flavor}:
        got = flavor.get(key)
        if key != "python_version" and got != expected.get(key) and got != "false":
            yield f"{key} of its python_function is {got!r}, expected {expected.get(key)!r}"
    yield from _find_installed(root)


def _find_installed(root: Path) -> Iterator[str]:
    """Yields the packages other than MLflow and rl_training that serving the version would install."""
    requirements = _read_text(root / "requirements.txt").split("\n")
    conda, virtualenv = _read_yaml(root / "conda.yaml"), _read_yaml(root / "python_env.yaml")
    if conda.pop("channels", None) != ["conda-forge"] or conda.pop("name", None) != "mlflow-env":
        yield "conda.yaml has other channels or another name"
    dependencies = _make_list(conda.pop("dependencies", None))
    for item in dependencies:
        if isinstance(item, dict) and list(item) == ["pip"]:
            requirements += _make_list(item["pip"])
        elif not _is_tool(item):
            yield f"conda.yaml installs {item!r}"
    if virtualenv.pop("dependencies", None) != ["-r requirements.txt"]:
        yield "python_env.yaml has other dependencies than requirements.txt"
    virtualenv.pop("python", None)
    for item in _make_list(virtualenv.pop("build_dependencies", None)):
        if not _is_tool(item):
            yield f"python_env.yaml installs {item!r}"
    for line in requirements:
        if line and not (isinstance(line, str) and _REQUIREMENT.fullmatch(line)):
            yield f"its requirements name {line!r}"
    for name in (*conda, *virtualenv):
        yield f"its environment has {name}"


def _is_tool(item: Any) -> bool:
    return isinstance(item, str) and _TOOL.fullmatch(item) is not None


def _make_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read_yaml(path: Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file with every scalar as text; no tag is constructed."""
    text = _read_text(path)
    try:
        document = read_yaml(text, path.name)
    except ConfigError as error:
        raise CheckpointError(f"its {path.name} can't be read: {one_line(error)}") from None
    return {key: _make_plain(item) for key, item in document.entries.items()}


def _read_text(path: Path) -> str:
    try:
        with open_plain_file(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise CheckpointError(f"its {path.name} is larger than {MOST_BYTES:,} bytes")
        return decode(data, path.name)
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"its {path.name} can't be read: {error}") from error


def _make_plain(node: Node) -> Any:
    if isinstance(node, MapNode):
        return {key: _make_plain(item) for key, item in node.entries.items()}
    if isinstance(node, ListNode):
        return [_make_plain(item) for item in node.items]
    return None if node.style == "plain" and node.value in NULLS else node.value
