"""The environments of a trainer, with encoding, normalisation, fault checks and masked resets behind one `step`.

Shapes: `N` environments, `*O` one encoded observation, `*A` one action of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.distributed.share import Share
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.contract_guard import format_fault
from rl_training.envs.contract.step_contract import float32_is_finite, not_finite, reward_not_finite
from rl_training.envs.episodes.episode_numbers import NO_NUMBERS
from rl_training.envs.episodes.running_episodes import RunningEpisodes
from rl_training.envs.factory import make_vector_env
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import CheckpointError, EnvironmentFault, UserError
from rl_training.seeding import env_seeds
from rl_training.state_checks import validate
from rl_training.system.constructor_cleanup import close_on_error

LOST_EPISODE = "lost episode: "
"""How a change begins that names an environment whose episode was lost with its Ray actor."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_Touch = Annotated[str, Field(pattern=r"^(set_attr|call|lost episode): [^\x00-\x1f\x7f-\x9f]{1,200}$")]
_Touched = Annotated[list[_Touch], Field(max_length=1_000)]


class Episode(NamedTuple):
    """A finished episode, in unscaled rewards."""

    env_index: int
    return_: float
    length: int
    numbers: Mapping[str, float] = NO_NUMBERS
    """The episode's other numbers by name: `raw_return`, the return beneath all wrappers, if there are wrappers; and of
    the last info, `is_success` (0 or 1) and `info/KEY` for each key of `metrics.info`. Those that the environment does
    not give are left out."""


class VectorStep(NamedTuple):
    """One step of all environments: N transitions, none of which is a reset."""

    next_observation: NDArray[Any]
    """[N, *O] the unnormalised observations; the final observation of an episode that ended."""
    next_normalized: NDArray[Any]
    """[N, *O] the same observations, normalised if `normalization.observation` is set."""
    reward: NDArray[np.float64]
    """[N] the environment's rewards."""
    scaled_reward: NDArray[np.float32]
    """[N] the same rewards, scaled if `normalization.reward` is set."""
    terminated: NDArray[np.bool_]
    """[N] whether the episode ended in a terminal state, whose value is 0."""
    truncated: NDArray[np.bool_]
    """[N] whether the episode was cut; the final observation has a value unless `terminated` is set as well."""
    done: NDArray[np.bool_]
    """[N] whether either flag is set."""
    episodes: list[Episode]
    """The episodes that ended on this step."""
    infos: Sequence[Mapping[str, Any]] = ()
    """[N] the info of each environment's step, if `TrainingEnvs.collect_infos` is set."""


class TrainingEnvs:
    """Training environments behind one `step`.

    Args:
        config: The settings.
        gamma: Discount factor of the return whose deviation scales rewards; required by `normalization.reward`.
        scale_actions: Whether the policy's actions lie in [-1, 1] and are scaled to the bounds of the space.

    Raises:
        EnvironmentRefused: The environment can't be made, or its spaces can't be converted to arrays.
    """

    @close_on_error
    def __init__(self, config: TrainConfig, gamma: float | None, *, scale_actions: bool = False) -> None:
        self._config, self._is_native = config, config.vectorization in NATIVE
        self._opened = ExitStack()
        self._envs = self._opened.enter_context(closing(make_vector_env(config)))
        self.num_envs = config.num_envs
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.encoder = ObservationEncoder(self.single_observation_space, config.mask_key)
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
        """[N, *O] the current observations, unnormalised; valid until the next step."""
        self._normalized = self.observation
        self._running = RunningEpisodes(self.num_envs)
        self._touched: set[str] = set()
        self._watch = self._opened.enter_context(CallWatch(config.env_id, ends=False))

    def start(self, share: Share | None = None) -> None:
        """Seeds each environment differently and begins the first episodes.

        Args:
            share: The place of these environments among those of the run; None if they are all.

        Raises:
            EnvironmentFault: An environment raised, exited, or broke its contract.
        """
        total, rows = (self.num_envs, slice(None)) if share is None else (share.num_envs, share.rows)
        seeds: list[int | None] = list(env_seeds(self._config.seed, total)[rows])
        observation, _ = self._watch.call("a reset in training", partial(self._envs.reset, seed=seeds))
        self._begin_from(self.encoder.encode(observation))

    def normalized(self) -> NDArray[Any]:
        """Returns the current observations [N, *O], normalised if `normalization.observation` is set."""
        return self._normalized

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Steps all environments once, and begins the next episode in those whose episode ended.

        Each observation that the policy acted on enters the statistics once, at this step.

        Args:
            actions: [N, *A] the policy's actions.

        Raises:
            EnvironmentFault: An environment raised, exited, or broke its contract; the message has its index and step.
        """
        raw, reward, terminated, truncated, _ = self._watch.call(
            "a step in training", self._envs.step, self.codec.to_env(actions)
        )
        next_observation = self.encoder.encode(raw)
        self._require_finite(next_observation, reward)
        self._running.returns += reward
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
        infos = self._envs.infos
        return VectorStep(
            next_observation, next_normalized, reward, scaled_reward, terminated, truncated, done, episodes, infos
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the normalisers' statistics, and a snapshot of each environment."""
        return {
            "observation_normalizer": self.observation_normalizer.state_dict() if self.observation_normalizer else None,
            "reward_normalizer": self.reward_normalizer.state_dict() if self.reward_normalizer else None,
            "snapshots": self._envs.snapshots(),
            **({"running": self._running.state_dict(self._envs.life_steps)} if self._is_native else {}),
            **({"touched": touched} if (touched := self.inexact_changes()) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[int]:
        """Restores the state that `state_dict` returned; single environments play their running episodes again.

        Returns:
            Indices of the environments that could not be restored, and which began a fresh episode instead.

        Raises:
            CheckpointError: The state has another number of environments or other normalisers.
            EnvironmentFault: An environment failed in the fresh episode as well.
        """
        snapshots = state["snapshots"]
        self._touched = set(validate("touched", list(state.get("touched", ())), _Touched))
        observation, fresh = self._envs.restore(snapshots)
        for name in ("observation_normalizer", "reward_normalizer"):
            normalizer = getattr(self, name)
            if (normalizer is None) != (state[name] is None):
                has, want = ("no", "ask for one") if state[name] is None else ("one", "ask for none")
                raise CheckpointError(f"{name.replace('_', ' ')}: the checkpoint has {has}; the settings {want}")
            if normalizer is not None:
                normalizer.load_state_dict(state[name])
        kept = set(range(self.num_envs)).difference(fresh)
        if kept and self._is_native:
            self._running.load_state_dict(state["running"], self._envs.life_steps)
        else:
            self._running.load_snapshots(snapshots, kept, self._envs.life_steps)
        if self.reward_normalizer is not None:
            self.reward_normalizer.forget(fresh)
        self._begin_from(self.encoder.encode(observation))
        return fresh

    @property
    def collect_infos(self) -> bool:
        """Whether steps have infos, which makes them slower; False at first.

        Infos from worker processes hold plain data and arrays alone; a warning names what is left out.
        """
        return self._envs.collect_infos

    @collect_infos.setter
    def collect_infos(self, collect: bool) -> None:
        self._envs.collect_infos, self._envs.infos = collect, ()

    # What callbacks may do to the environments; see `runtime.callbacks.EnvAccess`.

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of each environment.

        Raises:
            EnvironmentRefused: The environment has no such attribute.
        """
        return self._envs.get_attr(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each environment, from one value for all or a list or tuple with one value for each.

        A resumed run sets public attributes of plain data (numbers, text, and lists and dicts of these) again, at the
        same steps. After any other attribute was set, resumes are not exact.

        Raises:
            EnvironmentRefused: The environment has no such attribute.
            UserError: A list has another length, or a value can't be sent to a worker process.
        """
        if not self._envs.set_attr(name, values):
            self._touched.add(f"set_attr: {name}")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment and returns the results; resumes are not exact after it.

        Raises:
            UserError: The method is `reset`, `step` or `close`, or an argument can't be sent to a worker process.
        """
        if name in ("reset", "step", "close"):
            raise UserError(f"call: got {name!r}, which only the trainer may call; expected another method")
        self._touched.add(f"call: {name}")
        return self._envs.call(name, *args, **kwargs)

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Sets the options of every later `reset`, in place of those in use.

        Raises:
            EnvironmentRefused: The environments reset themselves without options.
            UserError: The options are no mapping from text to plain data.
        """
        self._envs.set_reset_options(options)

    def inexact_changes(self) -> list[str]:
        """Returns what has happened to the environments since the run began that a resume can't repeat, in words."""
        return sorted(self._touched.union(f"{LOST_EPISODE}{i}" for i in self._envs.lost_episodes))

    def close(self) -> None:
        """Closes the environments and ends their worker processes."""
        self._opened.close()

    def _begin_from(self, observation: NDArray[Any]) -> None:
        self._require_finite(observation, None)
        self.observation = self._normalized = observation
        if self.observation_normalizer is not None:
            self._normalized = self.observation_normalizer.normalize(observation)

    def _count_episodes(self, done: NDArray[np.bool_]) -> list[Episode]:
        """Returns the episodes that ended, and resets the counts for the next ones."""
        rows = np.flatnonzero(done)
        returns, lengths = self._running.end(rows, self._envs.life_steps)
        return list(map(Episode, rows.tolist(), returns, lengths, self._envs.numbers(rows)))

    def _require_finite(self, observation: NDArray[Any], reward: NDArray[np.float64] | None) -> None:
        vector = self.encoder.vector(observation)
        if vector is not None and np.count_nonzero(np.isfinite(vector)) < vector.size:
            row, column = (int(i) for i in np.argwhere(~np.isfinite(vector))[0])
            breach = not_finite(self.encoder.feature_name(column), float(vector[row, column]))
            raise self._fault(row, breach.message)
        # Fast check: no reward exceeds the root of the sum of squares; each is checked only if the sum is large or NaN.
        if reward is not None and not reward.dot(reward) <= _FLOAT32_MAX**2:
            for row in np.flatnonzero(~float32_is_finite(reward))[:1]:
                raise self._fault(int(row), reward_not_finite(float(reward[row])))

    def _fault(self, row: int, what: str) -> EnvironmentFault:
        return EnvironmentFault(format_fault(self._config.env_id, row, self._envs.life_steps, what))
