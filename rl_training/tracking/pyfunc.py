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
from rl_training.envs.space_leaves import list_leaves
from rl_training.errors import CheckpointError, UserError, error_line, one_line
from rl_training.moved_names import find_old_names
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint
from rl_training.runtime.policy import Policy
from rl_training.runtime.recurrent_policy import EpisodeActor, RecurrentPolicy
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.version_files import LOADER, MODEL_DATA, SERVED

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import TensorSpec

__getattr__ = find_old_names(__name__)


class PolicyModel:
    """The model whose `predict` MLflow calls."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._remembers = policy, isinstance(policy, RecurrentPolicy)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> npt.NDArray[Any]:
        """Returns the greedy action for each observation: [B, *action].

        Args:
            model_input: Observations as the environment returns them, stacked: an array [B, *observation], for Dict
                spaces a mapping of names to such arrays, or a list of B observations. For a policy with a memory, each
                of the B rows is instead the history of an episode: all of its observations so far, oldest first,
                [T, *observation] or a list.
            params: Ignored; the model has no parameters.

        Returns:
            The actions, in the environment's own units; for histories, those for their newest observations.

        Raises:
            UserError: The policy has a memory, and a row is not a history.
        """
        rows = _split_rows(model_input)
        return np.asarray(self._act_on_histories(rows) if self._remembers else self._policy.act(rows))

    def _act_on_histories(self, rows: list[Any]) -> list[Any]:
        """Returns the action for the newest observation of each history, playing all of them through side by side."""
        histories, actor = [self._read_history(row) for row in rows], EpisodeActor(self._policy)
        actions: list[Any] = [None] * len(histories)
        for step in range(max(map(len, histories))):
            running = [i for i, history in enumerate(histories) if len(history) > step]
            for i, action in zip(running, actor.act(running, [histories[i][step] for i in running]), strict=True):
                actions[i] = action
        return actions

    def _read_history(self, row: Any) -> list[Any]:
        """Returns the observations of a history."""
        space = self._policy.observation_space
        try:
            history = _split_rows(row)
            fits = bool(history) and all(
                np.shape(leaf.pick(each)) == (leaf.space.shape or ()) for leaf in list_leaves(space) for each in history
            )
        except (KeyError, IndexError, TypeError, ValueError, StopIteration):
            fits = False
        if not fits:
            raise UserError(
                f"got {one_line(row, repr)}, expected the history of an episode: all of its observations so far, "
                f"oldest first, each one of {space}, because the policy has a memory and this model keeps none"
            )
        return history


def _split_rows(model_input: Any) -> list[Any]:
    if isinstance(model_input, Mapping):
        count = len(next(iter(model_input.values())))
        return [{name: values[i] for name, values in model_input.items()} for i in range(count)]
    return list(model_input)


def _load_pyfunc(data_path: str) -> PolicyModel:
    """Verifies the checkpoint in a model by its hashes and loads its policy; MLflow calls this.

    A network of the user's own (`network.body`) is imported only if its module is allowed, by the environment variable
    `RL_TRAINING_ALLOW_MODULES` or in the home; see `rl_training.config.named_modules`.

    Raises:
        CheckpointError: The checkpoint is damaged.
        ModuleRefused: The network needs a module that is not allowed.
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
                signature=make_signature(
                    policy.observation_space, policy.action_space, of_histories=isinstance(policy, RecurrentPolicy)
                ),
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
    expected = np.asarray(EpisodeActor(policy).act([0], [observation]))
    try:
        action = mlflow.pyfunc.load_model(str(path)).predict(
            _make_batch(observation, isinstance(policy, RecurrentPolicy))
        )
    except Exception as error:  # MLflow raises errors of many types
        raise CheckpointError(f"{path} can't be run by MLflow: {error_line(error)}") from error
    if not np.array_equal(action, expected):
        raise CheckpointError(f"{path} does not act like its policy: got {action}, expected {expected}")


def _make_batch(observation: Any, in_history: bool) -> Any:
    """Returns one observation, as a history if the policy has a memory, as a batch in the form that a model accepts."""
    if in_history:
        observation = _make_batch(observation, False)
    if isinstance(observation, dict) and not any(isinstance(part, dict | tuple) for part in observation.values()):
        return {name: np.asarray(part)[None] for name, part in observation.items()}
    return [observation] if isinstance(observation, dict | tuple) else np.asarray(observation)[None]


def make_signature(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], *, of_histories: bool = False
) -> ModelSignature | None:
    """Returns a signature with a leading batch dimension, or None if MLflow's schemas can't express the spaces.

    Args:
        observation_space: The space of one observation.
        action_space: The space of one action.
        of_histories: Whether the rows of the input are histories, whose length is a second dimension.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    leading = (-1, -1) if of_histories else (-1,)
    if isinstance(observation_space, gym.spaces.Dict):
        wanted = [_make_tensor_spec(space, leading, name) for name, space in observation_space.items()]
    else:
        wanted = [_make_tensor_spec(observation_space, leading)]
    inputs, output = [tensor for tensor in wanted if tensor is not None], _make_tensor_spec(action_space, (-1,))
    if output is None or len(inputs) < len(wanted):
        return None
    return ModelSignature(inputs=Schema([*inputs]), outputs=Schema([output]))


def _make_tensor_spec(space: gym.Space[Any], leading: tuple[int, ...], name: str | None = None) -> TensorSpec | None:
    from mlflow.types import TensorSpec

    if space.shape is None or space.dtype is None:
        return None
    return TensorSpec(np.dtype(space.dtype), (*leading, *space.shape), name)
