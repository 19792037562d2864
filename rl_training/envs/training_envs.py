"""The environments that a trainer steps: encoding, normalisation, fault checks and masked resets in one place.

Shapes: `N` environments, `*O` one encoded observation, `*A` one action of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.contract_guard import fault_text
from rl_training.envs.contract.step_contract import float32_is_finite, not_finite, reward_not_finite
from rl_training.envs.factory import make_vector_env
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import CheckpointError, EnvironmentFault
from rl_training.seeding import env_seeds
from rl_training.system.constructor_cleanup import close_on_error

_FLOAT32_MAX = float(np.finfo(np.float32).max)


class Episode(NamedTuple):
    """A finished episode, counted in the environment's own rewards."""

    env_index: int
    return_: float
    length: int


class VectorStep(NamedTuple):
    """One step of all environments: N real transitions."""

    next_observation: NDArray[Any]
    """[N, *O] raw; the true final observation where the episode ended."""
    next_normalized: NDArray[Any]
    """[N, *O] the same through the normaliser."""
    reward: NDArray[np.float64]
    """[N] the environment's own."""
    scaled_reward: NDArray[np.float32]
    """[N] through the reward normaliser; the environment's own without one."""
    terminated: NDArray[np.bool_]
    """[N] the episode ended in a terminal state: its value is 0."""
    truncated: NDArray[np.bool_]
    """[N] the episode was cut: the final observation has a value, unless it is terminal as well."""
    done: NDArray[np.bool_]
    """[N] either flag."""
    episodes: list[Episode]
    """Those that ended on this step."""


class TrainingEnvs:
    """Training environments behind one `step`.

    Args:
        config: The settings.
        gamma: Discount of the return whose deviation scales rewards; needed with `normalization.reward`.
        scale_actions: Whether the policy's actions lie in [-1, 1] and are scaled to the space's bounds.

    Raises:
        EnvironmentRefused: The environment can't be made, or its spaces have no array form.
    """

    @close_on_error
    def __init__(self, config: TrainConfig, gamma: float | None, *, scale_actions: bool = False) -> None:
        self._config = config
        self._opened = ExitStack()
        self._envs = self._opened.enter_context(closing(make_vector_env(config)))
        self.num_envs = config.num_envs
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.encoder = ObservationEncoder(self.single_observation_space)
        self.codec = ActionCodec(self.single_action_space, scaled=scale_actions)
        settings = config.normalization
        self.observation_normalizer = (
            ObservationNormalizer(self.encoder, settings.clip) if settings.observation else None
        )
        self.reward_normalizer: RewardNormalizer | None = None
        if settings.reward:
            if gamma is None:
                raise ValueError("normalization.reward needs gamma, the discount of the return that scales rewards")
            self.reward_normalizer = RewardNormalizer(config.num_envs, gamma, settings.clip)
        self.observation: NDArray[Any] = np.zeros((self.num_envs, *self.encoder.shape), self.encoder.dtype)
        """[N, *O] raw current observations, in memory of their own, valid until the next step."""
        self._normalized = self.observation
        # Of the running episodes [N]: their rewards so far, and the step since the run began that each began at.
        self._returns = np.zeros(self.num_envs, np.float64)
        self._began = np.zeros(self.num_envs, np.int64)
        self._watch = self._opened.enter_context(CallWatch(config.env_id, ends=False))

    def start(self) -> None:
        """Seeds all environments, each differently, and begins their first episodes.

        Raises:
            EnvironmentFault: An environment raised, exited, or broke its contract.
        """
        seeds: list[int | None] = list(env_seeds(self._config.seed, self.num_envs))
        observation, _ = self._watch.call("a reset in training", partial(self._envs.reset, seed=seeds))
        self._begin_from(self.encoder.encode(observation))

    def normalized(self) -> NDArray[Any]:
        """Returns the current observations [N, *O] through the normaliser; the raw ones without one."""
        return self._normalized

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Steps all environments once, and begins the next episode of those that ended.

        Each observation that was acted on is counted once in the statistics, when its transition is made.

        Args:
            actions: [N, *A] of the policy.

        Raises:
            EnvironmentFault: An environment raised, exited, or broke its contract; names it, its index and step.
        """
        raw, reward, terminated, truncated, _ = self._watch.call(
            "a step in training", self._envs.step, self.codec.to_env(actions)
        )
        next_observation = self.encoder.encode(raw)
        self._require_finite(next_observation, reward)
        self._returns += reward
        done = terminated | truncated
        next_normalized, scaled_reward = next_observation, reward.astype(np.float32)
        if self.observation_normalizer is not None:
            self.observation_normalizer.update(self.observation)
            next_normalized = self.observation_normalizer.normalize(next_observation)
        if self.reward_normalizer is not None:
            self.reward_normalizer.update(reward, done)
            scaled_reward = self.reward_normalizer.normalize(reward)
        episodes: list[Episode] = []
        self.observation, self._normalized = next_observation, next_normalized
        if np.count_nonzero(done):
            episodes = self._count_episodes(done)
            options = {"reset_mask": done}
            raw, _ = self._watch.call("a reset in training", partial(self._envs.reset, options=options))
            self._begin_from(self.encoder.encode(raw))
        return VectorStep(
            next_observation, next_normalized, reward, scaled_reward, terminated, truncated, done, episodes
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the normalisers' statistics and what brings each environment back to where it is."""
        return {
            "observation_normalizer": self.observation_normalizer.state_dict() if self.observation_normalizer else None,
            "reward_normalizer": self.reward_normalizer.state_dict() if self.reward_normalizer else None,
            "snapshots": self._envs.snapshots(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[int]:
        """Takes back what `state_dict` returned, by playing each running episode again.

        Returns:
            Indices of the environments that did not come back to the same state, and so began a fresh episode.

        Raises:
            CheckpointError: The state is of another number of environments or of other normalisers.
            EnvironmentFault: An environment that could not be brought back failed in its fresh episode too.
        """
        snapshots = state["snapshots"]
        observation, fresh = self._envs.restore(snapshots)
        for name in ("observation_normalizer", "reward_normalizer"):
            normalizer = getattr(self, name)
            if (normalizer is None) != (state[name] is None):
                has, want = ("no", "ask for one") if state[name] is None else ("one", "ask for none")
                raise CheckpointError(f"{name.replace('_', ' ')}: the checkpoint has {has}; the settings {want}")
            if normalizer is not None:
                normalizer.load_state_dict(state[name])
        self._returns[:], self._began[:] = 0.0, self._envs.life_steps
        for i in set(range(self.num_envs)).difference(fresh):
            self._returns[i] = snapshots[i]["episode_return"]
            self._began[i] -= snapshots[i]["episode_length"]
        if self.reward_normalizer is not None:
            self.reward_normalizer.forget(fresh)
        self._begin_from(self.encoder.encode(observation))
        return fresh

    def close(self) -> None:
        """Closes the environments; worker processes are gone afterwards."""
        self._opened.close()

    def _begin_from(self, observation: NDArray[Any]) -> None:
        self._require_finite(observation, None)
        self.observation = self._normalized = observation
        if self.observation_normalizer is not None:
            self._normalized = self.observation_normalizer.normalize(observation)

    def _count_episodes(self, done: NDArray[np.bool_]) -> list[Episode]:
        """Returns the episodes that ended, and begins to count the next ones."""
        rows = np.flatnonzero(done)
        lengths = self._envs.life_steps - self._began[rows]
        episodes = list(map(Episode, rows.tolist(), self._returns[rows].tolist(), lengths.tolist()))
        self._returns[rows], self._began[rows] = 0.0, self._envs.life_steps
        return episodes

    def _require_finite(self, observation: NDArray[Any], reward: NDArray[np.float64] | None) -> None:
        vector = self.encoder.vector(observation)
        if vector is not None and np.count_nonzero(np.isfinite(vector)) < vector.size:
            row, column = (int(i) for i in np.argwhere(~np.isfinite(vector))[0])
            breach = not_finite(self.encoder.feature_name(column), float(vector[row, column]))
            raise self._fault(row, breach.message)
        # At a glance by the sum of squares, which no reward exceeds; where it is larger, or NaN, each is looked at.
        if reward is not None and not reward.dot(reward) <= _FLOAT32_MAX**2:
            for row in np.flatnonzero(~float32_is_finite(reward))[:1]:
                raise self._fault(int(row), reward_not_finite(float(reward[row])))

    def _fault(self, row: int, what: str) -> EnvironmentFault:
        return EnvironmentFault(fault_text(self._config.env_id, row, self._envs.life_steps, what))
