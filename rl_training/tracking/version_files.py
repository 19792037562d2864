"""The files of a registered version: only ours are fetched, and what MLflow would run of them must be as we write it.

Whoever can write to a store can name another loader in a version's `MLmodel`, add code to it or requirements that are
installed when it is served. Nothing here runs any of it: the files are read as text and compared with what `save_model`
writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.document import NULLS, ListNode, MapNode, Node
from rl_training.config.parsing import decode, read_yaml
from rl_training.errors import CheckpointError, ConfigError, one_line
from rl_training.run_layout import CONFIG
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint
from rl_training.runtime.checkpoint.manifest import MANIFEST, POLICY
from rl_training.security.untrusted_json import open_plain_file
from rl_training.tracking.checkpoint_sources import MODEL_DATA, download_version_files, list_version_files

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

LOADER = "rl_training.tracking.pyfunc"
SERVED = (MANIFEST, CONFIG, POLICY)
"""The files of a checkpoint that a registered model has."""

DESCRIPTION = ("MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt")
"""What MLflow writes beside them."""

MOST_BYTES = 65_536
"""Of each file of the description; ours have less than 1,000."""

_FREE = (
    "artifact_path", "run_id", "utc_time_created", "model_uuid", "mlflow_version", "model_size_bytes", "model_id",
    "signature",
)  # fmt: skip
"""Keys of `MLmodel` that say nothing of what is run."""
_REQUIREMENT = re.compile(r"(mlflow|rl-training)==[\w.+!-]+")
_TOOL = re.compile(r"(python|pip|setuptools|wheel)([<=]?=[\w.+!-]+)?")


def download_verified_copy(client: MlflowClient, uri: str, version: ModelVersion) -> Checkpoint:
    """Fetches a registered version's own copy of its checkpoint, verified, and checks what MLflow would run of it.

    Raises:
        CheckpointError: It has other files than ours, MLflow would run or install something else, or it is damaged.
    """
    there = set(list_version_files(client, uri, version))
    ours = {*DESCRIPTION, *(f"{MODEL_DATA}/{name}" for name in SERVED)}
    if there != ours:
        more, missing = ", ".join(sorted(there - ours)[:3]), ", ".join(sorted(ours - there)[:3])
        raise CheckpointError(f"it has {more}, which no version of ours has" if more else f"it has no {missing}")
    root = download_version_files(client, uri, version, DESCRIPTION)
    check_description(root)
    return open_checkpoint(download_version_files(client, uri, version, SERVED, MODEL_DATA), policy_only=True)


def check_description(root: Path) -> None:
    """Checks that MLflow would do with a version what it does with those that we write.

    Args:
        root: Where the files of the description are.

    Raises:
        CheckpointError: MLflow would run or install something else, or a file can't be read.
    """
    for difference in _differences(root):
        raise CheckpointError(f"it is not as rl_training writes a version: {difference}; nothing of it was run")


def _differences(root: Path) -> Iterator[str]:
    """Yields what MLflow would do otherwise with a version's files than with those that we write."""
    model = _read(root / "MLmodel")
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
    yield from _installed(root)


def _installed(root: Path) -> Iterator[str]:
    """Yields what serving the version would install besides MLflow and rl_training."""
    requirements = _text(root / "requirements.txt").split("\n")
    conda, virtualenv = _read(root / "conda.yaml"), _read(root / "python_env.yaml")
    if conda.pop("channels", None) != ["conda-forge"] or conda.pop("name", None) != "mlflow-env":
        yield "conda.yaml has other channels or another name"
    dependencies = _list(conda.pop("dependencies", None))
    for item in dependencies:
        if isinstance(item, dict) and list(item) == ["pip"]:
            requirements += _list(item["pip"])
        elif not _is_tool(item):
            yield f"conda.yaml installs {item!r}"
    if virtualenv.pop("dependencies", None) != ["-r requirements.txt"]:
        yield "python_env.yaml has other dependencies than requirements.txt"
    virtualenv.pop("python", None)
    for item in _list(virtualenv.pop("build_dependencies", None)):
        if not _is_tool(item):
            yield f"python_env.yaml installs {item!r}"
    for line in requirements:
        if line and not (isinstance(line, str) and _REQUIREMENT.fullmatch(line)):
            yield f"its requirements name {line!r}"
    for name in (*conda, *virtualenv):
        yield f"its environment has {name}"


def _is_tool(item: Any) -> bool:
    return isinstance(item, str) and _TOOL.fullmatch(item) is not None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read(path: Path) -> dict[str, Any]:
    """Returns a YAML file's mapping; nothing in it is constructed, and a value is its text."""
    text = _text(path)
    try:
        document = read_yaml(text, path.name)
    except ConfigError as error:
        raise CheckpointError(f"its {path.name} can't be read: {one_line(error)}") from None
    return {key: _plain(item) for key, item in document.entries.items()}


def _text(path: Path) -> str:
    try:
        with open_plain_file(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise CheckpointError(f"its {path.name} is larger than {MOST_BYTES:,} bytes")
        return decode(data, path.name)
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"its {path.name} can't be read: {error}") from error


def _plain(node: Node) -> Any:
    if isinstance(node, MapNode):
        return {key: _plain(item) for key, item in node.entries.items()}
    if isinstance(node, ListNode):
        return [_plain(item) for item in node.items]
    return None if node.style == "plain" and node.value in NULLS else node.value
