"""Playing a fixed list of episodes with a greedy policy, and what the returns say.

The list of episode seeds is dealt out beforehand: environment i plays seeds i, i + n, i + 2n, and so on. Taking
whichever episodes end first would weigh short ones more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rl_training.config.settings import TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets, format_fault
from rl_training.envs.contract.step_contract import not_finite
from rl_training.envs.factory import make_env
from rl_training.envs.space_leaves import leaves
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.policy import Policy
from rl_training.system.paths import keep_working_folder
from rl_training.system.signal_handlers import check_handlers

CONFIDENCE = 0.95
"""Of the interval of the mean."""


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of one evaluation, in the order of their seeds."""

    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    """The environment's own return of each episode, undiscounted and not normalised."""
    lengths: tuple[int, ...]
    """Steps of each episode."""
    cut: int = 0
    """Episodes that were cut at the evaluation's own bound on their length."""

    @property
    def episodes(self) -> int:
        """How many episodes were played."""
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """Mean return."""
        return math.fsum(self.returns) / self.episodes

    @property
    def return_std(self) -> float:
        """Sample standard deviation of the returns (n - 1); 0 for one episode."""
        if self.episodes == 1:
            return 0.0
        mean = self.return_mean
        return math.sqrt(math.fsum((r - mean) ** 2 for r in self.returns) / (self.episodes - 1))

    @property
    def ci_low(self) -> float:
        """Lower end of the 95 % Student t interval of the mean; NaN for one episode, which has none."""
        return self.return_mean - self._half_width()

    @property
    def ci_high(self) -> float:
        """Upper end of the 95 % Student t interval of the mean; NaN for one episode, which has none."""
        return self.return_mean + self._half_width()

    @property
    def length_mean(self) -> float:
        """Mean number of steps."""
        return math.fsum(self.lengths) / self.episodes

    def summary(self) -> dict[str, float]:
        """Returns the numbers that sum it up; what is undefined is left out."""
        numbers = {
            "return_mean": self.return_mean,
            "return_std": self.return_std,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "length_mean": self.length_mean,
            "episodes": float(self.episodes),
        }
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def metrics(self, prefix: str) -> dict[str, float]:
        """Returns the summary under tracked names, `eval/return_mean` for the prefix `eval`."""
        return {f"{prefix}/{name}": value for name, value in self.summary().items()}

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON: the summary (`ci_low` and `ci_high` are None where undefined) and every episode."""
        return {
            "ci_low": None,
            "ci_high": None,
            **self.summary(),
            "episodes": self.episodes,
            "cut": self.cut,
            "seeds": list(self.seeds),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Returns what `to_dict` was called on."""
        return cls(tuple(data["seeds"]), tuple(data["returns"]), tuple(data["lengths"]), data["cut"])

    def _half_width(self) -> float:
        if self.episodes == 1:
            return math.nan
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # 0.2 s that a run without evaluation saves

        quantile = float(stdtrit(self.episodes - 1, 0.5 + CONFIDENCE / 2))
        return quantile * self.return_std / math.sqrt(self.episodes)


class Evaluator:
    """Environments of its own for evaluating one task; they are made at the first use and kept."""

    def __init__(
        self, config: TrainConfig, *, num_envs: int | None = None, max_episode_steps: int | None = None
    ) -> None:
        """Takes the task.

        Args:
            config: Names the environment.
            num_envs: Environments that play side by side, in place of `evaluation.num_envs`; no result depends on it.
            max_episode_steps: Bound on an episode's length, in place of `evaluation.max_episode_steps`.
        """
        self.config = config
        self.num_envs = num_envs or config.evaluation.num_envs
        self.max_episode_steps = max_episode_steps or config.evaluation.max_episode_steps
        self._envs: list[gym.Env[Any, Any]] = []

    def run(self, policy: Policy, seeds: Sequence[int], stop: StopFlag | None = None) -> EvaluationResult:
        """Plays one episode from each seed.

        Args:
            policy: Acts greedily.
            seeds: Handed to `reset(seed=...)`, one an episode.
            stop: Polled between steps.

        Raises:
            EnvironmentFault: An environment raised or exited, or gave an observation or reward that is not finite;
                names the environment's index, the episode's seed and its step.
            EnvironmentRefused: The environment can't be made, or its spaces are not the policy's.
            StopTraining: `stop` was set.
            ValueError: There are no seeds.
        """
        if not seeds:
            raise ValueError("an evaluation needs at least one episode seed")
        count = min(self.num_envs, len(seeds))
        while len(self._envs) < count:
            self._envs.append(make_env(self.config, len(self._envs)))
        self._require_spaces_of(policy)
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

    def _require_spaces_of(self, policy: Policy) -> None:
        for name in ("observation_space", "action_space"):
            needed, given = getattr(policy, name), getattr(self._envs[0], name)
            if needed != given:
                raise EnvironmentRefused(
                    f"the policy's {name} is {needed}, and environment {self.config.env_id!r} has {given}; evaluate a "
                    f"policy in the environment that it was trained in"
                )

    def close(self) -> None:
        """Closes the environments; a later `run` makes new ones."""
        envs, self._envs = self._envs, []
        close_quietly(self.config.env_id, envs, find_secrets(self.config))


def evaluation_numbers(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers that sum an evaluation (as JSON) up, without its single episodes."""
    return {name: value for name, value in evaluation.items() if not isinstance(value, list)}


def evaluate_policy(
    policy: Policy,
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    num_envs: int | None = None,
    max_episode_steps: int | None = None,
    stop: StopFlag | None = None,
) -> EvaluationResult:
    """Plays one episode from each seed in environments made for it; see `Evaluator`."""
    evaluator = Evaluator(config, num_envs=num_envs, max_episode_steps=max_episode_steps)
    with keep_working_folder(), closing(evaluator):
        return evaluator.run(policy, seeds, stop)


class _Player:
    """One environment and its quota of episodes."""

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
        self._boxes = [leaf for leaf in leaves(env.observation_space) if isinstance(leaf.space, gym.spaces.Box)]
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
