"""What trainers of networks share: environments, the greedy policy, and what a checkpoint holds of both.

Each algorithm's own trainer adds its loop and its buffer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, Literal, Protocol, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.config.checking import build_settings
from rl_training.config.parsing import read_yaml
from rl_training.config.settings import TrainConfig
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation.validate import CheckSpaces, require_valid, validate_env
from rl_training.envs.vector.masked_vector_env import require_count
from rl_training.errors import CheckpointError, ConfigError, one_line
from rl_training.networks.feature_extractors import fewest_weights
from rl_training.networks.flat import Layers
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state, load_trainer_state
from rl_training.runtime.checkpoint.manifest import POLICY, TRAINER
from rl_training.runtime.fine_tuning import CarriedOver, has_training_state
from rl_training.runtime.policy import GreedyPolicy, Policy
from rl_training.runtime.run_utils import TrainingRun, resolve_device
from rl_training.runtime.trainer import Trainer
from rl_training.state_checks import restoring


class NetworkAlgorithm(Protocol):
    """What an algorithm of `rl_training.algorithms` offers its trainer, whatever it learns and how."""

    def act_greedy(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the best actions [N, *A] for observations [N, *O]."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the weights that acting needs."""

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes those back."""

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Takes over the layers that fit of another's weights, and of its training state where there is one."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all of training but these weights."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes that back."""


POLICY_PARTS = frozenset({"weights", "observation_normalizer", "observation_space", "action_space"})
"""Keys of a policy's state."""

ConfigT = TypeVar("ConfigT", bound=TrainConfig)
MakeAlgorithm = Callable[[ConfigT, ObservationEncoder, ActionCodec, torch.device], NetworkAlgorithm]


def check_trainable(config: TrainConfig, expected: type[TrainConfig], check_spaces: CheckSpaces) -> None:
    """Checks, before anything is written, what a Python caller hands to an algorithm's `train_...`.

    Args:
        config: The settings.
        expected: What the algorithm's settings are.
        check_spaces: What the algorithm can't train on.

    Raises:
        ConfigError: The settings are another algorithm's.
        EnvironmentRefused: The environment can't be trained on; a line for every reason.
    """
    if not isinstance(config, expected):
        raise ConfigError(
            f"got {type(config).__name__} (algo: {config.algo}), expected {expected.__name__}; "
            f"`train_{config.algo}` takes these settings"
        )
    require_valid(validate_env(config, check_spaces))


class NetworkTrainer(Trainer):
    """A trainer whose policy is a network."""

    algorithm: NetworkAlgorithm

    def __init__(
        self, config: TrainConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.envs = self._opened.enter_context(closing(self._make_envs()))
        images = self.envs.encoder.kind != "vector"
        hidden = getattr(getattr(config, "network", None), "hidden", ())  # an algorithm of one's own may have none
        self.device, self.device_reason = resolve_device(config.device, images=images, hidden=hidden)

    @classmethod
    def require_held(cls, config: TrainConfig, checkpoint: Checkpoint) -> None:
        """Checks, before anything is made by a checkpoint's settings, that the checkpoint is of that size.

        Raises:
            CheckpointError: Its settings are of a larger network, or of another number of environments.
        """
        with restoring(f"{checkpoint.path / POLICY} is refused: it does not hold a policy of {config.algo}"):
            policy = load_policy_state(checkpoint)
            spaces = (space_from_json(policy[name]) for name in ("observation_space", "action_space"))
            if hasattr(config, "network"):  # an algorithm of one's own may have none
                encoder, codec = ObservationEncoder(next(spaces)), ActionCodec(next(spaces))
                require_weights(config, encoder, codec, policy["weights"])
        if not has_training_state(checkpoint):
            return
        with restoring(f"{checkpoint.path / TRAINER} is refused: it does not hold the state of {config.algo}"):
            snapshots = load_trainer_state(checkpoint)["envs"]["snapshots"]
            require_count(sum(snapshot.get("num_envs", 1) for snapshot in snapshots), config.num_envs)

    @abstractmethod
    def _make_envs(self) -> TrainingEnvs:
        """Returns the training environments."""

    def _start(self) -> None:
        self.envs.start()

    def policy(self) -> Policy:
        """Returns the current policy, greedy, with the normaliser's statistics as they are now."""
        return GreedyPolicy(
            encoder=self.envs.encoder,
            normalizer=self.envs.observation_normalizer,
            act_greedy=self.algorithm.act_greedy,
            codec=self.envs.codec,
            observation_space=self.envs.single_observation_space,
            action_space=self.envs.single_action_space,
        )

    def _policy_state(self) -> dict[str, Any]:
        normalizer = self.envs.observation_normalizer
        return {
            "weights": self.algorithm.policy_state(),
            "observation_normalizer": normalizer.state_dict() if normalizer is not None else None,
            "observation_space": space_to_json(self.envs.single_observation_space),
            "action_space": space_to_json(self.envs.single_action_space),
        }

    def _trainer_state(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm.state_dict(), "envs": self.envs.state_dict()}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.algorithm.load_policy_state(policy["weights"])
        self.algorithm.load_state_dict(trainer["algorithm"])
        if self.envs.observation_normalizer is not None:
            self.envs.observation_normalizer.load_state_dict(policy["observation_normalizer"])
        return self.envs.load_state_dict(trainer["envs"])

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Takes over the weights that fit, and the observation statistics; see `runtime.fine_tuning`."""
        layers = self.algorithm.carry_over(policy["weights"], None if trainer is None else trainer["algorithm"])
        return CarriedOver(layers.carried, layers.fresh, self._carry_statistics(policy))

    def _carry_statistics(self, policy: Mapping[str, Any]) -> Literal["carried over", "fresh", "none"]:
        normalizer, encoder = self.envs.observation_normalizer, self.envs.encoder
        if normalizer is None:
            return "none"
        before = ObservationEncoder(space_from_json(policy["observation_space"]))
        if (before.kind, before.shape, before.dtype) != (encoder.kind, encoder.shape, encoder.dtype):
            return "fresh"
        normalizer.load_state_dict(policy["observation_normalizer"])
        return "carried over"

    def _close(self) -> None:
        self.envs.close()


def require_weights(config: TrainConfig, encoder: ObservationEncoder, codec: ActionCodec, weights: Any) -> None:
    """Checks, before a checkpoint's network is made, that the checkpoint has as many weights as it would.

    Raises:
        CheckpointError: The settings or spaces are of a larger network.
    """
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise CheckpointError("weights: got something else than tensors by their names")
    hidden = getattr(getattr(config, "network", None), "hidden", ())
    outputs = sum(codec.nvec) or codec.size
    needed, held = fewest_weights(encoder, hidden, outputs), sum(weight.numel() for weight in weights.values())
    if needed > held or len(hidden) > len(weights):
        raise CheckpointError(
            f"weights do not fit the network of these settings: it has at least {needed:,} in {len(hidden) + 1} "
            f"layers, and the checkpoint {held:,} in {len(weights)} tensors"
        )


def load_network_policy(
    checkpoint: Checkpoint,
    config_type: type[ConfigT],
    make_algorithm: MakeAlgorithm[ConfigT],
    *,
    scale_actions: bool = False,
) -> Policy:
    """Returns the greedy policy of a checkpoint that a `NetworkTrainer` wrote, without making an environment.

    Args:
        checkpoint: Verified.
        config_type: The algorithm's settings.
        make_algorithm: The algorithm's class.
        scale_actions: Whether the algorithm's actions lie in [-1, 1] and are scaled to the space's bounds.

    Raises:
        CheckpointError: The checkpoint is damaged or another algorithm's.
    """
    config = build_settings(read_yaml(checkpoint.config_text(), str(checkpoint.path)), config_type)
    state = load_policy_state(checkpoint)
    if state.keys() != POLICY_PARTS:
        raise CheckpointError(f"a policy has the parts {', '.join(sorted(POLICY_PARTS))}; got {one_line(list(state))}")
    observation_space, action_space = (space_from_json(state[name]) for name in ("observation_space", "action_space"))
    encoder, codec = ObservationEncoder(observation_space), ActionCodec(action_space, scaled=scale_actions)
    require_weights(config, encoder, codec, state["weights"])
    algorithm = make_algorithm(config, encoder, codec, torch.device("cpu"))
    algorithm.load_policy_state(state["weights"])
    normalizer = None
    if state["observation_normalizer"] is not None:
        normalizer = ObservationNormalizer(encoder, config.normalization.clip)
        normalizer.load_state_dict(state["observation_normalizer"])
    return GreedyPolicy(
        encoder=encoder,
        normalizer=normalizer,
        act_greedy=algorithm.act_greedy,
        codec=codec,
        observation_space=observation_space,
        action_space=action_space,
    )
