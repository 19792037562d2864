"""The common parts of the trainers of networks: the greedy policy, and the states in a checkpoint.

Each trainer holds a `NetworkAgent` and adds its own loop and buffer.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from rl_training.algorithms.network_algorithm import NetworkAlgorithm
from rl_training.config.checking import build_settings
from rl_training.config.network import find_body
from rl_training.config.parsing import read_yaml
from rl_training.config.settings import TrainConfig
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.spaces.action_mask import find_mask_faults
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.vector.masked_vector_env import require_count
from rl_training.errors import CheckpointError, one_line
from rl_training.moved_names import find_old_names
from rl_training.networks.feature_extractors import count_fewest_weights
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state, load_trainer_state
from rl_training.runtime.checkpoint.manifest import POLICY, TRAINER
from rl_training.runtime.fine_tuning import CarriedOver, has_training_state
from rl_training.runtime.policy import DrawsActions, GreedyPolicy, Policy, SamplingPolicy
from rl_training.runtime.recurrent_policy import RecurrentPolicy, Remembers
from rl_training.runtime.run_utils import TrainingRun, resolve_device
from rl_training.runtime.trainer import Trainer
from rl_training.state_checks import restoring

__getattr__ = find_old_names(__name__)

POLICY_PARTS = frozenset({"weights", "observation_normalizer", "observation_space", "action_space"})
"""The keys of a policy's state."""

ConfigT = TypeVar("ConfigT", bound=TrainConfig)
MakeAlgorithm = Callable[[ConfigT, ObservationEncoder, ActionCodec, torch.device], NetworkAlgorithm]


@dataclass(frozen=True)
class NetworkAgent:
    """An algorithm in its training environments."""

    envs: TrainingEnvs
    algorithm: NetworkAlgorithm

    def policy(self) -> Policy:
        """Returns the current greedy policy, with the current statistics of the observation normaliser."""
        return make_policy(self.algorithm, self.envs.encoder, self.envs.observation_normalizer, self.envs.codec)

    def policy_state(self) -> dict[str, Any]:
        """Returns the state that evaluation and serving need."""
        normalizer = self.envs.observation_normalizer
        return {
            "weights": self.algorithm.policy_state(),
            "observation_normalizer": normalizer.state_dict() if normalizer is not None else None,
            "observation_space": space_to_json(self.envs.single_observation_space),
            "action_space": space_to_json(self.envs.single_action_space),
        }

    def trainer_state(self) -> dict[str, Any]:
        """Returns the rest of the state of the algorithm and its environments."""
        return {"algorithm": self.algorithm.state_dict(), "envs": self.envs.state_dict()}

    def load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        """Restores both states; returns the environments whose episode could not be replayed."""
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
        space, mask_key = space_from_json(policy["observation_space"]), encoder.mask_key
        before = ObservationEncoder(space, mask_key if mask_key in getattr(space, "spaces", ()) else None)
        if before.features != encoder.features:
            return "fresh"
        normalizer.load_state_dict(policy["observation_normalizer"])
        return "carried over"


def choose_device(config: TrainConfig, encoder: ObservationEncoder) -> tuple[torch.device, str]:
    """Returns the device for the networks of these settings, and the reason in words; see `resolve_device`."""
    return resolve_device(config.device, images=encoder.kind != "vector", hidden=_read_hidden_widths(config))


def require_size(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Checks that a checkpoint has the size that its settings imply, before they are used to allocate anything.

    Args:
        config: The settings that the checkpoint was written with.
        checkpoint: A verified checkpoint.

    Raises:
        CheckpointError: The settings describe a larger network or another number of environments.
    """
    with restoring(checkpoint.path / POLICY, "a policy", config.algo):
        policy = load_policy_state(checkpoint)
        if hasattr(config, "network"):  # a custom algorithm may have none
            require_weights(config, *read_spaces(config, policy), policy["weights"])
    if not has_training_state(checkpoint):
        return
    with restoring(checkpoint.path / TRAINER, "the state", config.algo):
        snapshots = load_trainer_state(checkpoint)["envs"]["snapshots"]
        require_count(sum(snapshot.get("num_envs", 1) for snapshot in snapshots), config.num_envs)


def read_spaces(
    config: TrainConfig, policy: Mapping[str, Any], *, scale_actions: bool = False
) -> tuple[ObservationEncoder, ActionCodec]:
    """Returns encoder and codec for the spaces in a policy's state.

    Raises:
        CheckpointError: The spaces have no action mask of the form that the settings need.
    """
    observation_space, action_space = (space_from_json(policy[name]) for name in ("observation_space", "action_space"))
    if config.mask_key is not None:
        for fault in find_mask_faults(observation_space, action_space, config.mask_key):
            raise CheckpointError(fault)
    return ObservationEncoder(observation_space, config.mask_key), ActionCodec(action_space, scaled=scale_actions)


def require_weights(config: TrainConfig, encoder: ObservationEncoder, codec: ActionCodec, weights: Any) -> None:
    """Checks that a checkpoint has enough weights for the network of its settings, before the network is allocated.

    Raises:
        CheckpointError: The settings or spaces describe a larger network.
    """
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise CheckpointError("weights: expected a mapping from names to tensors, got something else")
    hidden, outputs = _read_hidden_widths(config), sum(codec.nvec) or codec.size
    outputs *= getattr(config, "outputs_per_action", 1)  # which only DQN's settings have
    held = sum(weight.numel() for weight in weights.values())
    layout = encoder.features if find_body(config) is None else None  # the size of a body of one's own is not known yet
    needed = count_fewest_weights(layout, hidden, outputs, _count_recurrent_units(config))
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
    """Returns the greedy policy of a checkpoint of a network trainer, without making an environment.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another algorithm.
    """
    config = build_settings(read_yaml(checkpoint.config_text(), str(checkpoint.path)), config_type)
    state = load_policy_state(checkpoint)
    if state.keys() != POLICY_PARTS:
        raise CheckpointError(f"a policy has the parts {', '.join(sorted(POLICY_PARTS))}; got {one_line(list(state))}")
    encoder, codec = read_spaces(config, state, scale_actions=scale_actions)
    require_weights(config, encoder, codec, state["weights"])
    algorithm = make_algorithm(config, encoder, codec, torch.device("cpu"))
    algorithm.load_policy_state(state["weights"])
    normalizer = None
    if state["observation_normalizer"] is not None:
        normalizer = ObservationNormalizer(encoder, config.normalization.clip)
        normalizer.load_state_dict(state["observation_normalizer"])
    return make_policy(algorithm, encoder, normalizer, codec)


def make_policy(
    algorithm: NetworkAlgorithm,
    encoder: ObservationEncoder,
    normalizer: ObservationNormalizer | None,
    codec: ActionCodec,
) -> Policy:
    """Returns the policy of an algorithm: with a memory if it `Remembers`, and drawing actions if it `DrawsActions`."""
    parts: dict[str, Any] = {
        "encoder": encoder,
        "normalizer": normalizer,
        "codec": codec,
        "observation_space": encoder.space,
        "action_space": codec.space,
    }
    if isinstance(algorithm, Remembers):
        return RecurrentPolicy(**parts, algorithm=algorithm)
    parts["act_greedy"] = algorithm.act_greedy
    return SamplingPolicy(**parts, drawer=algorithm) if isinstance(algorithm, DrawsActions) else GreedyPolicy(**parts)


class NetworkTrainer(Trainer):
    """The base class that trainers of networks had in version 0.1; a new trainer holds a `NetworkAgent` instead."""

    algorithm: NetworkAlgorithm
    require_size = staticmethod(require_size)

    def __init_subclass__(cls) -> None:
        """Warns the author of a trainer."""
        advice = "hold a NetworkAgent instead, because NetworkTrainer will be removed in the next version"
        warnings.warn(f"{cls.__name__}: {advice}", DeprecationWarning, stacklevel=2)
        super().__init_subclass__()

    def __init__(
        self, config: TrainConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.envs = self._opened.enter_context(closing(self._make_envs()))
        self.device, self.device_reason = choose_device(config, self.envs.encoder)

    @abstractmethod
    def _make_envs(self) -> TrainingEnvs:
        """Returns the training environments."""

    @property
    def agent(self) -> NetworkAgent:
        """The algorithm in its environments."""
        return NetworkAgent(self.envs, self.algorithm)

    def _start(self) -> None:
        self.envs.start()

    def policy(self) -> Policy:
        """Returns the current greedy policy."""
        return self.agent.policy()

    def _policy_state(self) -> dict[str, Any]:
        return self.agent.policy_state()

    def _trainer_state(self) -> dict[str, Any]:
        return self.agent.trainer_state()

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        return self.agent.load_states(policy, trainer)

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Takes over another run's weights and statistics; see `runtime.fine_tuning`."""
        return self.agent.carry_over(policy, trainer)


def _count_recurrent_units(config: TrainConfig) -> int:
    """Returns the number of units of a recurrent layer; 0 without one."""
    network: Any = getattr(config, "network", None)  # a custom algorithm may have none
    return network.recurrent_size if getattr(network, "recurrent", None) else 0


def _read_hidden_widths(config: TrainConfig) -> Sequence[int]:
    hidden: Sequence[int] = getattr(getattr(config, "network", None), "hidden", ())  # a custom algorithm may have none
    return hidden
