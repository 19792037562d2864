"""Native vector environments, which step N rows at once in their own array operations (`vector_entry_point`).

The autoreset mode decides whether each step is N transitions. With DISABLED, rows are reset by mask; with SAME_STEP,
the true final observation is in the infos. With NEXT_STEP, the step after the end of an episode resets that row and
ignores its action, while it is a transition in the other rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets, redact_cause
from rl_training.envs.contract.step_contract import check_reset_result, check_step_result, describe, describe_error
from rl_training.envs.episodes.attribute_changes import AttributeChanges
from rl_training.envs.episodes.episode_numbers import NO_NUMBERS, EpisodeNumbers
from rl_training.envs.episodes.vector_infos import take_final_row, take_row
from rl_training.envs.native.envpool_env import EnvPoolVectorEnv
from rl_training.envs.native.native_state import copy_state, find_resumable, restore_state
from rl_training.envs.plain_spaces import make_plain_space
from rl_training.envs.random_state import random_state, random_state_to_json, write_random_state
from rl_training.envs.vector.env_access import spread, to_reset_options
from rl_training.envs.vector.masked_vector_env import require_count
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, EnvironmentRefused, RLTrainingError
from rl_training.security.secrets import hide

logger = logging.getLogger(__name__)

_KINDS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class NativeVectorEnv:
    """Wraps a native vector environment so that each step is N transitions, followed by resets by mask.

    Args:
        config: The settings.
        envs: The native vector environment; `close` closes it.

    Raises:
        EnvironmentRefused: The autoreset mode is NEXT_STEP or unknown, or observations or actions are not one array.
    """

    def __init__(self, config: TrainConfig, envs: VectorEnv[Any, Any, Any]) -> None:
        self._env_id, self._envs, self._secrets = config.env_id, envs, find_secrets(config)
        self._numbers, self._resumable = EpisodeNumbers(config), find_resumable(envs)
        self._attributes = AttributeChanges(envs, config.env_id)
        self._options_changed = False
        self._infos: Mapping[str, Any] = {}
        self.collect_infos = False
        """Whether `step` divides the infos by environment, which takes time."""
        self.infos: Sequence[Mapping[str, Any]] = ()
        """The info of each environment's newest step, if they are collected."""
        self.num_envs = envs.num_envs
        self.single_observation_space = make_plain_space(envs.single_observation_space)
        self.single_action_space = make_plain_space(envs.single_action_space)
        self.life_steps = 0
        """Steps of each environment since the run began."""
        self.lost_episodes: Sequence[int] = ()
        mode = envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP):
            raise EnvironmentRefused(
                f"environment {self._env_id!r}: the autoreset mode of its native vector environment is "
                f"{getattr(mode, 'name', mode)}, in which a step can be a reset in one row and a transition in others; "
                f"supported are DISABLED (with options['reset_mask']) and SAME_STEP (with final_obs); "
                f"set vectorization to sync, async or split"
            )
        if not isinstance(self.single_observation_space, _KINDS) or not isinstance(self.single_action_space, _KINDS):
            raise EnvironmentRefused(
                f"environment {self._env_id!r}: native vector environments are supported only if observations and "
                f"actions are one array each; got {self.single_observation_space} and {self.single_action_space}"
            )
        self._shape = (self.num_envs, *(self.single_observation_space.shape or ()))
        self._seed = 0
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._reset_options: dict[str, Any] = {}
        if config.reset_options:
            self._take_reset_options(config.reset_options)
        self._newest: NDArray[Any] = np.zeros(self._shape, self.single_observation_space.dtype)
        # [N, *O] the observations that the next actions answer.

    def reset(
        self, *, seed: Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Resets all environments, or those where `options["reset_mask"]` (bool [N]) is true.

        Args:
            seed: One seed for each environment; only the first is used, because all share one random state.
            options: None, or a dict with the mask.

        Raises:
            EnvironmentFault: The environment raised, exited, or broke its contract.
        """
        if options is not None and self._same_step:
            return self._newest, {}
        if self._reset_options:
            options = {**deepcopy(self._reset_options), **(options or {})}
        first = seed[0] if seed else None
        self._seed = self._seed if first is None else first
        try:
            result = self._envs.reset(seed=first, options=options)
        except USER_CODE_ERRORS as error:
            raise self._fault(describe_error("reset", error)) from redact_cause(error, self._secrets)
        for breach in check_reset_result(result):
            raise self._fault(f"reset: {breach.message}")
        self._newest = self._array("observation", result[0], self._shape, self.single_observation_space.dtype)
        return self._newest, {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps all environments once; observations are the true final ones where episodes ended.

        Raises:
            EnvironmentFault: The environment raised, exited, or broke its contract.
        """
        self.life_steps += 1
        try:
            result = self._envs.step(actions.astype(self._envs.single_action_space.dtype, copy=False))
        except USER_CODE_ERRORS as error:
            raise self._fault(describe_error("step", error)) from redact_cause(error, self._secrets)
        for breach in check_step_result(result):
            raise self._fault(f"step: {breach.message}")
        observation = self._array("observation", result[0], self._shape, self.single_observation_space.dtype)
        reward = self._array("reward", result[1], (self.num_envs,), np.float64)
        terminated = self._array("terminated", result[2], (self.num_envs,), np.bool_)
        truncated = self._array("truncated", result[3], (self.num_envs,), np.bool_)
        self._infos, self._newest = result[4], observation
        if self._same_step:
            observation = self._with_final(observation, terminated | truncated, result[4])
        if self.collect_infos:
            self.infos = [self._take_info(i, over) for i, over in enumerate((terminated | truncated).tolist())]
        return observation, reward, terminated, truncated, {}

    def numbers(self, rows: NDArray[np.intp]) -> Sequence[Mapping[str, float]]:
        """Returns the numbers of the episodes that ended in the newest step, by name; see `EpisodeNumbers`.

        Args:
            rows: The indices of the environments whose episode ended.
        """
        if not self._infos:
            return [NO_NUMBERS] * len(rows)
        return [self._numbers.collect(self._take_info(i, over=True), None) for i in rows.tolist()]

    def _take_info(self, row: int, over: bool) -> dict[str, Any]:
        take = take_final_row if over and self._same_step else take_row
        return take(self._infos, row, self.num_envs)

    def snapshots(self) -> list[dict[str, Any]]:
        """Returns the state that `restore` takes: one snapshot for all environments together."""
        with self._naming("state_dict"):
            state = copy_state(self._resumable, self._newest)
        return [
            {
                "num_envs": self.num_envs,
                "life_steps": self.life_steps,
                "seed": self._seed,
                "random_state": random_state_to_json(random_state(self._envs)),
                **state,
                **({"attributes": attributes} if (attributes := self._attributes.state_dict()) else {}),
                **({"reset_options": json.dumps(self._reset_options)} if self._options_changed else {}),
            }
        ]

    def restore(self, snapshots: Sequence[Mapping[str, Any]]) -> tuple[NDArray[Any], list[int]]:
        """Restores the state of all rows; or begins fresh episodes if the environment or the snapshot has none.

        Fresh episodes are drawn from the saved random state, or by another seed if the random state is out of reach.

        Returns:
            The observations, and the indices of the environments that began a fresh episode: none or all.

        Raises:
            CheckpointError: The snapshot is from another number of environments, or its state from another environment.
            EnvironmentFault: The environment raised, exited, or broke its contract.
        """
        (snapshot,) = snapshots
        require_count(snapshot["num_envs"], self.num_envs)
        env = self._resumable if "state" in snapshot else None
        self.life_steps = int(snapshot["life_steps"])
        seed, has_random_state = snapshot["seed"], snapshot["random_state"] is not None
        if env is not None:
            self.reset(seed=[seed])  # for what an environment makes once, when it is first seeded, and keeps
        self._attributes.apply(snapshot.get("attributes", {}).get("now", {}))
        self._attributes.begin(seeded=False)
        if "reset_options" in snapshot:
            self.set_reset_options(json.loads(snapshot["reset_options"]))
        if has_random_state:
            write_random_state(self._envs, snapshot["random_state"])
        if env is not None:
            with self._naming("load_state_dict"):
                self._newest = restore_state(env, snapshot, self._newest)
            return self._newest, []
        logger.warning(
            "environment %s: the state of its %d native environments can't be restored; each begins a fresh episode",
            self._env_id,
            self.num_envs,
        )
        observation, _ = self.reset(seed=None if has_random_state else [(seed + self.life_steps) % 2**31])
        return observation, list(range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute, which the environments share, once for each."""
        return (self._attributes.find(name),) * self.num_envs

    def set_attr(self, name: str, values: Any) -> bool:
        """Sets an attribute, which the environments share.

        Args:
            name: Its name.
            values: One value, or a list or tuple with an equal value for each environment.

        Returns:
            Whether a resumed run can set it again; see `AttributeChanges.set`.

        Raises:
            EnvironmentRefused: There is no such attribute, or the values differ.
        """
        first, *others = spread(values, self.num_envs)
        if any(other is not first and other != first for other in others):
            raise EnvironmentRefused(
                f"environment {self._env_id!r}: got different values of {name!r}; native environments share their "
                f"attributes, so pass one value, or set vectorization to sync, async or split"
            )
        with self._naming(name):
            exact = self._attributes.set(name, first, 0)
        self._attributes.begin(seeded=False)  # a resume sets the newest values
        return exact

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method once, or reads an attribute, and returns the result once for each environment."""
        found = self._attributes.find(name)
        with self._naming(name):
            return (found(*args, **kwargs) if callable(found) else found,) * self.num_envs

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Sets the options of every later `reset`, in place of those in use.

        Raises:
            EnvironmentRefused: The environment resets itself without options.
        """
        self._take_reset_options(to_reset_options(options))
        self._options_changed = True

    def _take_reset_options(self, options: dict[str, Any]) -> None:
        unable = "in the mode SAME_STEP" if self._same_step else "in EnvPool"
        if self._same_step or isinstance(self._envs.unwrapped, EnvPoolVectorEnv):
            raise EnvironmentRefused(
                f"environment {self._env_id!r}: got reset options, which native environments {unable} do not take; "
                f"set vectorization to sync, async or split"
            )
        self._reset_options = options

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Turns an error of the environment into an `EnvironmentFault`."""
        try:
            yield
        except RLTrainingError:
            raise
        except USER_CODE_ERRORS as error:
            raise self._fault(describe_error(name, error)) from redact_cause(error, self._secrets)

    def close(self) -> None:
        """Closes the environment."""
        close_quietly(self._env_id, [self._envs], self._secrets)

    def _with_final(self, observation: NDArray[Any], done: NDArray[np.bool_], infos: Mapping[str, Any]) -> NDArray[Any]:
        rows = np.flatnonzero(done)
        if len(rows) == 0:
            return observation
        if "final_obs" not in infos:
            raise self._fault("step: episodes ended, and `final_obs` is not in the infos")
        final = [infos["final_obs"][i] for i in rows]
        observation = observation.copy()
        observation[rows] = self._array("final_obs", final, (len(rows), *self._shape[1:]), observation.dtype)
        return observation

    def _array(self, name: str, values: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Returns a copy, because an environment may return the same array each time and change it in place."""
        array = np.asarray(values)
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise self._fault(f"{name} is {describe(array)}; expected shape {shape} and dtype {np.dtype(dtype)}")
        return array.astype(dtype, order="C")  # as after a resume: sums over rows depend on the order in memory

    def _fault(self, what: str) -> EnvironmentFault:
        where = f"environment {self._env_id} ({self.num_envs} native ones) at its step {self.life_steps}"
        return EnvironmentFault(f"{where}: {hide(what, self._secrets)}")
