"""Evaluation: plays a fixed list of episodes with a greedy policy, and summarises the returns.

The episode seeds are assigned beforehand: environment i plays seeds i, i + n, i + 2n, and so on. To take the episodes
that end first would give short episodes more weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rl_training.config.settings import TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets, format_fault
from rl_training.envs.contract.step_contract import not_finite
from rl_training.envs.factory import make_env
from rl_training.envs.space_leaves import list_leaves
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.policy import Policy
from rl_training.system.paths import keep_working_folder
from rl_training.system.signal_handlers import check_handlers

CONFIDENCE = 0.95
"""The confidence level of the interval of the mean."""


MEANS = {"is_success": "success_rate", "raw_return": "raw_return_mean"}
"""The tracked names of the means of an episode's numbers; others, such as `info/KEY`, keep their own."""


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of one evaluation, in the order of their seeds."""

    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    """The return of each episode in the environment's own rewards, undiscounted and not normalised."""
    lengths: tuple[int, ...]
    """The number of steps of each episode."""
    cut: int = 0
    """The number of episodes that were cut off by the evaluation's own limit on their length."""
    numbers: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Other numbers of the episodes by name, as in `Episode.numbers`; None for an episode that did not give one."""

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """The mean return."""
        return math.fsum(self.returns) / self.episodes

    @property
    def return_std(self) -> float:
        """The sample standard deviation of the returns (n - 1); 0 for one episode."""
        if self.episodes == 1:
            return 0.0
        mean = self.return_mean
        return math.sqrt(math.fsum((r - mean) ** 2 for r in self.returns) / (self.episodes - 1))

    @property
    def ci_low(self) -> float:
        """The lower end of the 95 % Student t interval of the mean; NaN for one episode, which has no interval."""
        return self.return_mean - self._half_width()

    @property
    def ci_high(self) -> float:
        """The upper end of the 95 % Student t interval of the mean; NaN for one episode, which has no interval."""
        return self.return_mean + self._half_width()

    @property
    def length_mean(self) -> float:
        """The mean number of steps."""
        return math.fsum(self.lengths) / self.episodes

    @property
    def success_rate(self) -> float | None:
        """The share of successful episodes among those that say whether they were; None if none does."""
        return self._mean("is_success")

    @property
    def raw_return_mean(self) -> float | None:
        """The mean return beneath all wrappers; None for an environment without wrappers."""
        return self._mean("raw_return")

    def summary(self) -> dict[str, float]:
        """Returns the summary statistics; undefined ones are left out."""
        numbers = {
            "return_mean": self.return_mean,
            "return_std": self.return_std,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "length_mean": self.length_mean,
            "episodes": float(self.episodes),
        }
        if self.cut:
            numbers["cut_episodes"] = float(self.cut)
        for name in self.numbers:
            mean = self._mean(name)
            if mean is not None:
                numbers[MEANS.get(name, name)] = mean
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def metrics(self, prefix: str) -> dict[str, float]:
        """Returns the summary under tracked names, such as `eval/return_mean` for the prefix `eval`."""
        return {f"{prefix}/{name}": value for name, value in self.summary().items()}

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary and every episode for JSON; undefined values of `ci_low` and `ci_high` are None."""
        return {
            "ci_low": None,
            "ci_high": None,
            **self.summary(),
            "episodes": self.episodes,
            "cut": self.cut,
            "seeds": list(self.seeds),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "numbers": {name: list(values) for name, values in self.numbers.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Returns the result from which `to_dict` made the data."""
        numbers = {name: tuple(values) for name, values in data.get("numbers", {}).items()}
        return cls(tuple(data["seeds"]), tuple(data["returns"]), tuple(data["lengths"]), data["cut"], numbers)

    def _mean(self, name: str) -> float | None:
        given = [value for value in self.numbers.get(name, ()) if value is not None]
        return math.fsum(given) / len(given) if given else None

    def _half_width(self) -> float:
        if self.episodes == 1:
            return math.nan
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # here, because it takes 0.2 s

        quantile = float(stdtrit(self.episodes - 1, 0.5 + CONFIDENCE / 2))
        return quantile * self.return_std / math.sqrt(self.episodes)


class Evaluator:
    """Evaluates policies in its own environments, which are made at the first use and kept."""

    def __init__(
        self, config: TrainConfig, *, num_envs: int | None = None, max_episode_steps: int | None = None
    ) -> None:
        """Stores the task.

        Args:
            config: The settings, which name the environment.
            num_envs: The number of environments, instead of `evaluation.num_envs`; results do not depend on it.
            max_episode_steps: The limit on an episode's length, instead of `evaluation.max_episode_steps`.
        """
        self.config = config
        self.num_envs = num_envs or config.evaluation.num_envs
        self.max_episode_steps = max_episode_steps or config.evaluation.max_episode_steps
        self._envs: list[gym.Env[Any, Any]] = []

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
        self._require_same_spaces(policy)
        players = [
            _Player(self.config.env_id, i, self._envs[i], list(seeds[i::count]), self.max_episode_steps)
            for i in range(count)
        ]
        while active := [player for player in players if player.playing]:
            check_handlers()
            if stop is not None and stop.requested:
                raise StopTraining
            actions = policy.act([player.observation for player in active])
            for player, action in zip(active, actions, strict=True):
                player.step(action)
        returns, lengths = [0.0] * len(seeds), [0] * len(seeds)
        for i, player in enumerate(players):
            returns[i::count], lengths[i::count] = player.returns, player.lengths
        return EvaluationResult(
            tuple(int(seed) for seed in seeds), tuple(returns), tuple(lengths), sum(player.cut for player in players)
        )

    def _require_same_spaces(self, policy: Policy) -> None:
        for name in ("observation_space", "action_space"):
            needed, given = getattr(policy, name), getattr(self._envs[0], name)
            if needed != given:
                raise EnvironmentRefused(
                    f"the policy's {name} is {needed}, and environment {self.config.env_id!r} has {given}; evaluate a "
                    f"policy in the environment that it was trained in"
                )

    def close(self) -> None:
        """Closes the environments; a later `run` makes new environments."""
        envs, self._envs = self._envs, []
        close_quietly(self.config.env_id, envs, find_secrets(self.config))


def select_evaluation_numbers(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the summary of an evaluation in JSON form, without its episodes."""
    return {name: value for name, value in evaluation.items() if not isinstance(value, list) and name != "numbers"}


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
        self, env_id: str, index: int, env: gym.Env[Any, Any], seeds: list[int], max_episode_steps: int
    ) -> None:
        self.env_id = env_id
        self.index = index
        self.env = env
        self.seeds = seeds
        self.max_episode_steps = max_episode_steps
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.cut = 0
        self._boxes = [leaf for leaf in list_leaves(env.observation_space) if isinstance(leaf.space, gym.spaces.Box)]
        self._reset()

    @property
    def playing(self) -> bool:
        return len(self.returns) < len(self.seeds)

    def step(self, action: Any) -> None:
        self.length += 1
        try:
            self.observation, reward, terminated, truncated, _ = self.env.step(action)
        except EnvironmentFault as error:
            raise self._fault(str(error)) from error
        self._check_observation()
        if not math.isfinite(reward):
            raise self._fault(self._fault_text(f"reward is {reward}; it must be finite"))
        over = terminated or truncated
        if over or self.length == self.max_episode_steps:
            self.cut += not over
            self.returns.append(float(self.env.get_wrapper_attr("episode_return")))
            self.lengths.append(self.length)
            if self.playing:
                self._reset()

    def _reset(self) -> None:
        self.length = 0
        try:
            self.observation, _ = self.env.reset(seed=self.seeds[len(self.returns)])
        except EnvironmentFault as error:
            raise self._fault(str(error)) from error
        self._check_observation()

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
