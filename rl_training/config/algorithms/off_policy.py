"""Settings that the off-policy algorithms share: the replay buffer, and the number of updates per step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rl_training.config.sections import Settings
from rl_training.config.settings import Combination, TrainConfig


class HindsightConfig(Settings):
    """Replay with goals that were achieved later in the same episode (Andrychowicz et al. 2017, strategy `future`)."""

    relabelled_fraction: float = Field(default=0.8, gt=0, le=1)
    """The probability that a drawn transition gets such a goal; 0.8 is four replayed goals for each goal of its own."""


class OffPolicyConfig(TrainConfig):
    """The settings that the algorithms with a replay buffer share."""

    buffer_size: PositiveInt = 100_000
    """Transitions that the replay buffer holds, summed over all environments; a multiple of num_envs."""
    frame_channels: PositiveInt | None = None
    """For image observations: the number of channels that are new in each step (1 for a stack of grey frames, 3 for
    color). Each frame is then stored once, in a fraction of the memory; null stores complete observations."""
    learning_starts: NonNegativeInt = 1_000
    """Environment steps with random actions before the first update (which also waits for batch_size transitions)."""
    batch_size: PositiveInt = 64
    """Transitions in each update, drawn uniformly with replacement."""
    train_freq: PositiveInt = 4
    """Environment steps between two blocks of updates, summed over all environments."""
    gradient_steps: PositiveInt = 1
    """Updates in each block; gradient_steps / train_freq is the number of updates per environment step."""
    n_step: PositiveInt = 1
    """Number of rewards that are summed before a target bootstraps."""
    hindsight: HindsightConfig | None = None
    """For environments with goals: replays transitions with goals that their episodes achieved later, see
    [Hindsight](algorithms/hindsight.md); `{}` takes the defaults, null replays the goals as they were."""
    gamma: float = Field(default=0.99, gt=0, le=1)
    """Discount factor."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Adam's step size (its initial value, if the schedule is linear)."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` decays to 0 over total_timesteps."""

    @property
    def has_priorities(self) -> bool:
        """Whether the replay buffer holds a priority of each transition."""
        return False

    @property
    def replaces_goals(self) -> bool:
        """Whether training computes rewards for other goals than those that the environment has set."""
        return self.hindsight is not None

    def updates_due(self, num_timesteps: int) -> int:
        """Returns the number of updates up to an environment step. It does not depend on num_envs."""
        start = max(self.learning_starts, self.batch_size)
        blocks = num_timesteps // self.train_freq - start // self.train_freq
        return self.gradient_steps * max(0, blocks)

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings."""
        yield from super().combinations()
        size, num_envs = self.buffer_size, self.num_envs
        if self.batch_size > size:
            yield Combination(
                ("batch_size", "buffer_size"),
                f"got {self.batch_size}, expected at most buffer_size = {size}; lower batch_size or raise buffer_size",
            )
        if size % num_envs:
            yield Combination(
                ("buffer_size", "num_envs"),
                f"got {size}, expected a multiple of num_envs = {num_envs}, such as {-(-size // num_envs) * num_envs}",
            )
        if self.n_step > size // num_envs:
            yield Combination(
                ("n_step", "buffer_size", "num_envs"),
                f"got {self.n_step}, expected at most buffer_size / num_envs = {size // num_envs}, the number of "
                f"steps that are stored for each environment",
            )
        if self.updates_due(-(-self.total_timesteps // num_envs) * num_envs) == 0:
            yield Combination(
                ("learning_starts", "total_timesteps", "train_freq", "batch_size"),
                f"got {self.learning_starts}, and the run ends at total_timesteps = {self.total_timesteps} with 0 "
                f"updates: the first one waits for learning_starts and for batch_size = {self.batch_size} transitions, "
                f"then for train_freq = {self.train_freq} more; lower learning_starts or raise total_timesteps",
            )
        if self.hindsight is not None:
            yield from self._hindsight_faults()

    def _hindsight_faults(self) -> Iterator[Combination]:
        """Yields settings under which the reward of a transition for another goal can't be computed."""
        if self.n_step > 1:
            yield Combination(
                ("n_step", "hindsight"),
                f"got {self.n_step} with hindsight, which computes the reward of a single step for another goal; set "
                f"it to 1, or leave hindsight out",
            )
        if self.frame_channels is not None:
            yield Combination(
                ("frame_channels", "hindsight"),
                f"got {self.frame_channels} with hindsight, whose observations are not images alone; leave it out",
            )
        for i, stage in enumerate(self.curriculum):
            if stage.attributes:
                yield Combination(
                    (f"curriculum.{i}.attributes", "hindsight"),
                    f"got {', '.join(stage.attributes)} with hindsight, whose rewards come from an environment that "
                    f"callbacks and curricula do not change; use reset_options, or leave hindsight out",
                )
