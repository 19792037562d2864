"""Evaluation: plays a fixed list of episodes with a greedy policy in the environment of evaluation.

The episode seeds are assigned beforehand: environment i plays seeds i, i + n, i + 2n, and so on. To take the episodes
that end first would give short episodes more weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.config.settings import TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets, format_fault
from rl_training.envs.contract.step_contract import not_finite
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.envs.factory import make_env
from rl_training.envs.space_leaves import list_leaves
from rl_training.errors import EnvironmentFault
from rl_training.runs.evaluation_result import EvaluationResult as EvaluationResult
from rl_training.runs.evaluation_result import select_evaluation_numbers as select_evaluation_numbers
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.policy import Policy, require_same_spaces
from rl_training.runtime.recurrent_policy import EpisodeActor
from rl_training.system.paths import keep_working_folder
from rl_training.system.signal_handlers import check_handlers


class Evaluator:
    """Evaluates policies in its own environments, which are made at the first use and kept."""

    def __init__(
        self, config: TrainConfig, *, num_envs: int | None = None, max_episode_steps: int | None = None
    ) -> None:
        """Stores the task.

        Args:
            config: The settings; the environment is that of `config.for_evaluation()`.
            num_envs: The number of environments, instead of `evaluation.num_envs`; results do not depend on it.
            max_episode_steps: The limit on an episode's length, instead of `evaluation.max_episode_steps`.
        """
        self.config = config.for_evaluation()
        self.num_envs = num_envs or config.evaluation.num_envs
        self.max_episode_steps = max_episode_steps or config.evaluation.max_episode_steps
        self._envs: list[EpisodeReplay] = []

    def run(self, policy: Policy, seeds: Sequence[int], stop: StopFlag | None = None) -> EvaluationResult:
        """Plays one episode from each seed.

        Args:
            policy: The greedy policy.
            seeds: The argument of `reset(seed=...)` for each episode.
            stop: A stop flag, polled between steps.

        Raises:
            EnvironmentFault: An environment raised, exited, or returned an observation or reward that is not finite;
                the message names the index of the environment, the seed of the episode, and the step.
            EnvironmentRefused: The environment can't be made, or its spaces are not those of the policy.
            StopTraining: A stop was requested.
            ValueError: There are no seeds.
        """
        if not seeds:
            raise ValueError("an evaluation needs at least one episode seed")
        count = min(self.num_envs, len(seeds))
        while len(self._envs) < count:
            self._envs.append(make_env(self.config, len(self._envs)))
        require_same_spaces(policy, self._envs[0], self.config.env_id)
        players = [
            _Player(self.config, i, self._envs[i], list(seeds[i::count]), self.max_episode_steps) for i in range(count)
        ]
        actor = EpisodeActor(policy)
        while active := [player for player in players if player.playing]:
            check_handlers()
            if stop is not None and stop.requested:
                raise StopTraining
            names = [(player.index, len(player.returns)) for player in active]
            actions = actor.act(names, [player.observation for player in active])
            for player, action in zip(active, actions, strict=True):
                player.step(action)
        returns, lengths = [0.0] * len(seeds), [0] * len(seeds)
        numbers: list[Mapping[str, float]] = [{}] * len(seeds)
        for i, player in enumerate(players):
            returns[i::count], lengths[i::count], numbers[i::count] = player.returns, player.lengths, player.numbers
        return EvaluationResult(
            tuple(int(seed) for seed in seeds),
            tuple(returns),
            tuple(lengths),
            sum(player.cut for player in players),
            {name: tuple(each.get(name) for each in numbers) for name in sorted({n for each in numbers for n in each})},
            len(set().union(*(player.starts for player in players))),
        )

    def close(self) -> None:
        """Closes the environments; a later `run` makes new environments."""
        envs, self._envs = self._envs, []
        close_quietly(self.config.env_id, envs, find_secrets(self.config))


def evaluate_policy(
    policy: Policy,
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    num_envs: int | None = None,
    max_episode_steps: int | None = None,
    stop: StopFlag | None = None,
) -> EvaluationResult:
    """Plays one episode from each seed in new environments; see `Evaluator` for the arguments and errors."""
    evaluator = Evaluator(config, num_envs=num_envs, max_episode_steps=max_episode_steps)
    with keep_working_folder(), closing(evaluator):
        return evaluator.run(policy, seeds, stop)


class _Player:
    """One environment and the seeds of the episodes that it plays."""

    def __init__(
        self, config: TrainConfig, index: int, env: EpisodeReplay, seeds: list[int], max_episode_steps: int
    ) -> None:
        self.env_id = config.env_id
        self.index = index
        self.env = env
        self.seeds = seeds
        self.max_episode_steps = max_episode_steps
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.numbers: list[Mapping[str, float]] = []
        self.starts: set[int] = set()
        self._leaves = list_leaves(env.observation_space)
        self._reader = EpisodeNumbers(config)
        self.cut = 0
        self._boxes = [leaf for leaf in self._leaves if isinstance(leaf.space, gym.spaces.Box)]
        self._reset()

    @property
    def playing(self) -> bool:
        return len(self.returns) < len(self.seeds)

    def step(self, action: Any) -> None:
        self.length += 1
        try:
            self.observation, reward, terminated, truncated, info = self.env.step(action)
        except EnvironmentFault as error:
            raise self._fault(str(error)) from error
        self._check_observation()
        if not math.isfinite(reward):
            raise self._fault(self._fault_text(f"reward is {reward}; it must be finite"))
        over = terminated or truncated
        if over or self.length == self.max_episode_steps:
            self.cut += not over
            self.returns.append(float(self.env.episode_return))
            self.lengths.append(self.length)
            self.numbers.append(self._reader.collect(info, self.env.raw_return))
            if self.playing:
                self._reset()

    def _reset(self) -> None:
        self.length = 0
        try:
            self.observation, _ = self.env.reset(seed=self.seeds[len(self.returns)])
        except EnvironmentFault as error:
            raise self._fault(str(error)) from error
        self._check_observation()
        self.starts.add(hash(tuple(np.asarray(leaf.pick(self.observation)).tobytes() for leaf in self._leaves)))

    def _check_observation(self) -> None:
        for leaf in self._boxes:
            values = leaf.pick(self.observation)
            if np.count_nonzero(np.isfinite(values)) < values.size:
                where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
                raise self._fault(self._fault_text(not_finite(leaf.feature(where), float(values[where])).message))

    def _fault_text(self, what: str) -> str:
        return format_fault(self.env_id, self.index, self.env.get_wrapper_attr("life_steps"), what)

    def _fault(self, text: str) -> EnvironmentFault:
        seed = self.seeds[len(self.returns)]
        return EnvironmentFault(f"{text} (in evaluation, at step {self.length} of the episode with seed {seed})")
