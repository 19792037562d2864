"""The settings of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rl_training.config.action_mask import MaskedActionsConfig
from rl_training.config.network import MLPConfig
from rl_training.config.sections import NormalizationConfig, NumEnvs
from rl_training.config.settings import AUTO, Combination

DIVISIBLE = (AUTO, "sync", "async", "split")
"""The kinds of `vectorization` whose environments can be divided among ranks."""


class NetworkConfig(MLPConfig):
    """Architecture of the policy and value networks."""

    hidden: tuple[PositiveInt, ...] = Field(default=(64, 64), strict=False)
    activation: Literal["tanh", "relu"] = "tanh"
    initial_log_std: float = 0.0
    """Initial value of the state-independent log standard deviation of continuous actions."""
    recurrent: Literal["lstm", "gru"] | None = None
    """A recurrent layer before each MLP, with which policy and value function remember the episode so far."""
    recurrent_size: PositiveInt = 256
    """Units of each recurrent layer."""


class PPONormalizationConfig(NormalizationConfig):
    """Running normalization of observations and rewards."""

    reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return (no mean is subtracted). One step size
    then fits the value function of any task."""


class PPOConfig(MaskedActionsConfig):
    """Proximal Policy Optimization (Schulman et al. 2017), with the details of Huang et al. 2022."""

    algo: Literal["ppo"] = "ppo"
    """The algorithm."""
    num_envs: NumEnvs = 8
    """Training environments that are stepped together."""
    normalization: PPONormalizationConfig = PPONormalizationConfig()
    """Running normalization."""
    ranks: Annotated[PositiveInt, Field(le=1_024)] = 1
    """Processes that train together, each with `num_envs / ranks` of the environments."""
    rollout_steps: PositiveInt = 128
    """Steps that each environment takes between two updates (T)."""
    batch_size: PositiveInt = 64
    """Transitions in each minibatch; at most num_envs * rollout_steps."""
    sequence_length: PositiveInt | None = None
    """With `network.recurrent`: steps of the sequences that minibatches consist of, and through which gradients go
    back; rollout_steps and batch_size are multiples of it. null: the complete rollout of an environment."""
    epochs: PositiveInt = 10
    """Passes over a rollout in each update."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Adam's step size (its initial value, if the schedule is linear)."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` decays to 0 over total_timesteps."""
    clip_range: float = Field(default=0.2, gt=0)
    """Clip range of the probability ratio (its initial value, if the schedule is linear)."""
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    """`linear` decays to 0 over total_timesteps."""
    value_clip: float | None = Field(default=None, gt=0)
    """Clip range of the change in value since the rollout; null does not clip values."""
    gamma: float = Field(default=0.99, gt=0, le=1)
    """Discount factor."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    value_coef: float = Field(default=0.5, ge=0)
    """Weight of the value loss, which is the plain mean squared error (without a factor of one half)."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Largest norm of the gradient over all parameters; a larger gradient is scaled down."""
    normalize_advantage: bool = True
    """Normalize the advantages in each minibatch."""
    target_kl: float | None = Field(default=None, gt=0)
    """Stop an update when a minibatch's approximate KL divergence exceeds 1.5 times this value; null never stops."""
    adam_epsilon: float = Field(default=1e-5, gt=0)
    """Adam's epsilon."""
    network: NetworkConfig = NetworkConfig()
    """The policy and value networks."""

    @property
    def sequence_steps(self) -> int:
        """Steps of each sequence that a recurrent network learns from."""
        return self.sequence_length or self.rollout_steps

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings."""
        yield from super().combinations()
        rollout = self.num_envs * self.rollout_steps
        if self.batch_size > rollout:
            yield Combination(
                ("batch_size", "rollout_steps", "num_envs"),
                f"got {self.batch_size}, expected at most num_envs * rollout_steps = {self.num_envs} * "
                f"{self.rollout_steps} = {rollout}; lower batch_size or raise rollout_steps",
            )
        if self.normalize_advantage and self.batch_size == 1:
            yield Combination(
                ("batch_size", "normalize_advantage"),
                "got 1, expected at least 2, because normalize_advantage divides by a minibatch's standard deviation",
            )
        if self.network.recurrent:
            yield from self._sequence_faults()
        else:
            yield from self._memory_faults()
        if self.ranks > 1:
            yield from self._rank_faults()

    def _sequence_faults(self) -> Iterator[Combination]:
        """Yields what a recurrent network can't learn from, or where it can't learn."""
        steps = self.sequence_steps
        if self.rollout_steps % steps:
            yield Combination(
                ("sequence_length", "rollout_steps"),
                f"got {steps}, expected a divisor of rollout_steps = {self.rollout_steps}, because a rollout is "
                f"divided into sequences of equal length",
            )
        elif self.batch_size % steps:
            yield Combination(
                ("batch_size", "sequence_length", "rollout_steps"),
                f"got {self.batch_size}, expected a multiple of {steps}, because minibatches consist of sequences of "
                f"{steps} steps (sequence_length, by default rollout_steps); change batch_size or sequence_length",
            )
        if self.ranks > 1:
            yield Combination(
                ("ranks", "network.recurrent"),
                f"got {self.ranks} with network.recurrent: {self.network.recurrent}, which learns in one process; set "
                f"ranks: 1, or leave network.recurrent out",
            )

    def _memory_faults(self) -> Iterator[Combination]:
        """Yields settings of a recurrent network that have no effect, because the network has no memory."""
        default = type(self.network).model_fields["recurrent_size"].default
        given = {"sequence_length": self.sequence_length}
        if self.network.recurrent_size != default:
            given["network.recurrent_size"] = self.network.recurrent_size
        for key, value in given.items():
            if value is not None:
                yield Combination(
                    (key, "network.recurrent"),
                    f"got {value} without network.recurrent; set network.recurrent: lstm or gru, or leave {key} out",
                )

    def _rank_faults(self) -> Iterator[Combination]:
        """Yields what several ranks can't do."""
        if self.num_envs % self.ranks:
            yield Combination(
                ("ranks", "num_envs"),
                f"got {self.ranks} with num_envs: {self.num_envs}, expected a divisor of num_envs, because each rank "
                f"steps as many environments",
            )
        if self.vectorization not in DIVISIBLE:
            yield Combination(
                ("vectorization", "ranks"),
                f"got {self.vectorization} with ranks: {self.ranks}, expected {', '.join(DIVISIBLE)}, whose "
                f"environments can be divided among ranks; set one of these, or ranks: 1",
            )
        if self.curriculum:
            yield Combination(
                ("curriculum", "ranks"),
                f"got it with ranks: {self.ranks}, and a curriculum changes the environments of one process; leave it "
                f"out, or set ranks: 1",
            )
        if self.device.startswith("cuda:"):
            yield Combination(
                ("device", "ranks"),
                f"got {self.device} with ranks: {self.ranks}, expected cuda, with which each rank has a GPU of its own",
            )
