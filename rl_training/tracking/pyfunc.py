"""A checkpoint's policy as an MLflow pyfunc model: saved with data alone, loaded by this module, never unpickled.

`mlflow.pyfunc.load_model("models:/NAME@champion").predict(observations)` gives actions in the environment's own units.
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
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.version_files import LOADER, MODEL_DATA, SERVED

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import TensorSpec


class PolicyModel:
    """What MLflow calls to predict."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> npt.NDArray[Any]:
        """Returns the greedy action for each observation: [B, *action].

        Args:
            model_input: Observations as the environment returns them, stacked: an array [B, *observation], for Dict
                spaces a mapping of names to such arrays, or a list of B observations.
            params: None are known.

        Returns:
            The actions, in the environment's own units.
        """
        return np.asarray(self._policy.act(_rows(model_input)))


def _rows(model_input: Any) -> list[Any]:
    if isinstance(model_input, Mapping):
        count = len(next(iter(model_input.values())))
        return [{name: values[i] for name, values in model_input.items()} for i in range(count)]
    return list(model_input)


def _load_pyfunc(data_path: str) -> PolicyModel:
    """Called by MLflow: verifies the copied checkpoint by its hashes and loads its policy.

    Raises:
        CheckpointError: It is damaged.
    """
    return PolicyModel(load_policy(open_checkpoint(data_path, policy_only=True)))


def save_model(checkpoint: Checkpoint, path: Path) -> None:
    """Writes an MLflow model directory with a checkpoint's policy in it.

    Args:
        checkpoint: Verified.
        path: The directory to make.

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
                pip_requirements=[f"rl-training=={__version__}"],  # named, so that MLflow infers nothing
            )


def check_model(path: Path, policy: Policy) -> None:
    """Loads a model that was just written here as MLflow's users do, and lets it act on one observation.

    MLflow imports what a model names, so this is for files of our own alone, never for what a store returns.

    Args:
        path: The model's directory, of `save_model`.
        policy: What it must act as.

    Raises:
        CheckpointError: It can't be loaded or run, or acts otherwise.
    """
    import mlflow.pyfunc

    space = copy.deepcopy(policy.observation_space)
    space.seed(0)
    observation = space.sample()
    expected = np.asarray(policy.act([observation]))
    try:
        action = mlflow.pyfunc.load_model(str(path)).predict(_batch(observation))
    except Exception as error:  # MLflow's, of whatever type
        raise CheckpointError(f"{path} can't be run by MLflow: {error_line(error)}") from error
    if not np.array_equal(action, expected):
        raise CheckpointError(f"{path} acts otherwise than its policy: got {action}, expected {expected}")


def _batch(observation: Any) -> Any:
    """Returns one observation as a model takes it."""
    if isinstance(observation, dict) and not any(isinstance(part, dict | tuple) for part in observation.values()):
        return {name: np.asarray(part)[None] for name, part in observation.items()}
    return [observation] if isinstance(observation, dict | tuple) else np.asarray(observation)[None]


def make_signature(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> ModelSignature | None:
    """Returns the signature with a leading batch dimension, or None for spaces that MLflow's schemas can't express."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    if isinstance(observation_space, gym.spaces.Dict):
        wanted = [_tensor(space, name) for name, space in observation_space.items()]
    else:
        wanted = [_tensor(observation_space)]
    inputs, output = [tensor for tensor in wanted if tensor is not None], _tensor(action_space)
    if output is None or len(inputs) < len(wanted):
        return None
    return ModelSignature(inputs=Schema([*inputs]), outputs=Schema([output]))


def _tensor(space: gym.Space[Any], name: str | None = None) -> TensorSpec | None:
    from mlflow.types import TensorSpec

    if space.shape is None or space.dtype is None:
        return None
    return TensorSpec(np.dtype(space.dtype), (-1, *space.shape), name)
