"""Saves a checkpoint's policy as an MLflow pyfunc model, which contains only data and is loaded by this module.

`mlflow.pyfunc.load_model("models:/NAME@champion").predict(observations)` gives actions in the environment's own units.
Nothing is unpickled.

Shape legend: B batch.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training import __version__
from rl_training.errors import CheckpointError, error_line
from rl_training.moved_names import find_old_names
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.version_files import LOADER, MODEL_DATA, SERVED

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import TensorSpec

__getattr__ = find_old_names(__name__)


class PolicyModel:
    """The model whose `predict` MLflow calls."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> npt.NDArray[Any]:
        """Returns the greedy action for each observation: [B, *action].

        Args:
            model_input: Observations as the environment returns them, stacked: an array [B, *observation], for Dict
                spaces a mapping of names to such arrays, or a list of B observations.
            params: Ignored; the model has no parameters.

        Returns:
            The actions, in the environment's own units.
        """
        return np.asarray(self._policy.act(_split_rows(model_input)))


def _split_rows(model_input: Any) -> list[Any]:
    if isinstance(model_input, Mapping):
        count = len(next(iter(model_input.values())))
        return [{name: values[i] for name, values in model_input.items()} for i in range(count)]
    return list(model_input)


def _load_pyfunc(data_path: str) -> PolicyModel:
    """Verifies the checkpoint in a model by its hashes and loads its policy; MLflow calls this.

    Raises:
        CheckpointError: The checkpoint is damaged.
    """
    return PolicyModel(load_policy(open_checkpoint(data_path, policy_only=True)))


def save_model(checkpoint: Checkpoint, path: Path) -> None:
    """Writes an MLflow model directory with a checkpoint's policy.

    Args:
        checkpoint: The verified checkpoint.
        path: The directory to create.

    Raises:
        CheckpointError: The policy can't be loaded.
    """
    import mlflow.pyfunc

    policy = load_policy(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / Path(MODEL_DATA).name
        data.mkdir()
        for name in SERVED:
            shutil.copyfile(checkpoint.path / name, data / name)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input example was not provided.*")
            mlflow.pyfunc.save_model(
                str(path),
                loader_module=LOADER,
                data_path=str(data),
                signature=make_signature(policy.observation_space, policy.action_space),
                pip_requirements=[f"rl-training=={__version__}"],  # given, so that MLflow does not infer any
            )


def check_model(path: Path, policy: Policy) -> None:
    """Loads a model that was just written with MLflow, and compares its action for one observation.

    MLflow imports the modules that a model names, so call this only for a directory that this process has written,
    never for files from a store.

    Args:
        path: The model's directory, from `save_model`.
        policy: The policy that the model must agree with.

    Raises:
        CheckpointError: The model can't be loaded or run, or its action differs.
    """
    import mlflow.pyfunc

    space = copy.deepcopy(policy.observation_space)
    space.seed(0)
    observation = space.sample()
    expected = np.asarray(policy.act([observation]))
    try:
        action = mlflow.pyfunc.load_model(str(path)).predict(_make_batch(observation))
    except Exception as error:  # MLflow raises errors of many types
        raise CheckpointError(f"{path} can't be run by MLflow: {error_line(error)}") from error
    if not np.array_equal(action, expected):
        raise CheckpointError(f"{path} does not act like its policy: got {action}, expected {expected}")


def _make_batch(observation: Any) -> Any:
    """Returns one observation as a batch in the form that a model accepts."""
    if isinstance(observation, dict) and not any(isinstance(part, dict | tuple) for part in observation.values()):
        return {name: np.asarray(part)[None] for name, part in observation.items()}
    return [observation] if isinstance(observation, dict | tuple) else np.asarray(observation)[None]


def make_signature(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> ModelSignature | None:
    """Returns a signature with a leading batch dimension, or None if MLflow's schemas can't express the spaces."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    if isinstance(observation_space, gym.spaces.Dict):
        wanted = [_make_tensor_spec(space, name) for name, space in observation_space.items()]
    else:
        wanted = [_make_tensor_spec(observation_space)]
    inputs, output = [tensor for tensor in wanted if tensor is not None], _make_tensor_spec(action_space)
    if output is None or len(inputs) < len(wanted):
        return None
    return ModelSignature(inputs=Schema([*inputs]), outputs=Schema([output]))


def _make_tensor_spec(space: gym.Space[Any], name: str | None = None) -> TensorSpec | None:
    from mlflow.types import TensorSpec

    if space.shape is None or space.dtype is None:
        return None
    return TensorSpec(np.dtype(space.dtype), (-1, *space.shape), name)
