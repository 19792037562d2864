"""PPO's training loop: collect a rollout and learn from it, until all steps are done.

Shapes: T rollout steps, N environments, O one encoded observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.algorithms.ppo import check_spaces
from rl_training.algorithms.recurrent_ppo import make_ppo
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.settings import TrainConfig
from rl_training.data.rollout_memory import check_memory
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import UserError
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.fine_tuning import CarriedOver
from rl_training.runtime.loop_parts.rollout import complete_rollout, take_step
from rl_training.runtime.network_trainer import NetworkAgent, choose_device, load_network_policy, require_size
from rl_training.runtime.policy import Policy
from rl_training.runtime.ranks.follower import leave_if_follower
from rl_training.runtime.ranks.learner import RankLearner
from rl_training.runtime.ranks.orders import Command
from rl_training.runtime.ranks.team import Team
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.trainer_factory import ResumeFrom, make_trainer, train

STEPS_PER_ORDER = 64
"""The most steps that several ranks take before they can be stopped, evaluated or saved."""


class PPOTrainer(Trainer):
    """Trains PPO; see `rl_training.algorithms.ppo` for the mathematics."""

    config: PPOConfig
    require_size = staticmethod(require_size)

    def __init__(
        self, config: PPOConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self._make_parts(config)

    def _make_parts(self, config: PPOConfig) -> None:
        self.envs = self._opened.enter_context(closing(TrainingEnvs(config, gamma=config.gamma)))
        encoder, codec = self.envs.encoder, self.envs.codec
        self.device, self.device_reason = choose_device(config, encoder)
        check_memory(config, encoder, codec)
        self.algorithm = make_ppo(config, encoder, codec, self.device)
        self.agent = NetworkAgent(self.envs, self.algorithm)
        self.buffer = self.algorithm.make_buffer(config.num_envs, encoder, codec)

    def _start(self) -> None:
        self.envs.start()

    def _learn(self) -> None:
        while self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            if self.progress.phase == "collect":
                self._collect()
            self._update()

    def _collect(self) -> None:
        """Fills the buffer with T steps of N environments; the last rollout of a run may be shorter."""
        if self.buffer.position == 0:
            self.buffer.reset(self._rollout_steps())
        while not self.buffer.full:
            self.between_steps()
            self.count_step(take_step(self.envs, self.algorithm, self.buffer))
        complete_rollout(self.envs, self.algorithm, self.buffer)
        self._end_collection()

    def _end_collection(self) -> None:
        self.progress.phase = "update"
        self._emit("on_collect_end", self.progress.rollout_metrics() if self._log_due() else {})

    def _update(self) -> None:
        """Learns from the full buffer, then empties it."""
        metrics = self._learn_from_rollout(self.num_timesteps - self.buffer.position * self.config.num_envs)
        self.progress.phase = "collect"
        self.progress.iteration += 1
        if self._log_due():
            self.progress.last_log = self.num_timesteps
            self._emit("on_update_end", {**self.progress.rollout_metrics(), **metrics, **self._time_metrics()})
        else:
            self._emit("on_update_end", {})

    def _learn_from_rollout(self, before_rollout: int) -> dict[str, float]:
        """Updates the networks after a rollout that began at a step; returns the metrics."""
        metrics = self.algorithm.update(self.buffer, before_rollout / self.config.total_timesteps, self.check_stop)
        self.buffer.reset()
        return metrics

    def _rollout_steps(self) -> int:
        """Returns the rollout's length; the last rollout is shortened so that training ends at `total_timesteps`."""
        left = -(-(self.config.total_timesteps - self.num_timesteps) // self.config.num_envs)
        return min(self.config.rollout_steps, left)

    def policy(self) -> Policy:
        """Returns the current greedy policy."""
        return self.agent.policy()

    def _policy_state(self) -> dict[str, Any]:
        return self.agent.policy_state()

    def _trainer_state(self) -> dict[str, Any]:
        self.algorithm.acting.complete(self.buffer)  # so that the checkpoint has nothing half done
        observation = self.envs.normalized().copy()  # [N, O]; follows the newest step
        return {**self.agent.trainer_state(), "buffer": self.buffer.state_dict(), "observation": observation}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.buffer.load_state_dict(trainer["buffer"])
        fresh = self.agent.load_states(policy, trainer)
        if fresh and self.buffer.position > 0 and self.progress.phase == "collect":
            self.buffer.cut_newest(fresh, self.algorithm.value(trainer["observation"]))
        self.algorithm.begin_episodes(fresh)
        return fresh

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Takes over another run's weights and statistics; see `runtime.fine_tuning`."""
        return self.agent.carry_over(policy, trainer)


class RankedPPOTrainer(PPOTrainer):
    """Trains PPO as rank 0 of several; evaluates, records and saves for all of them.

    Evaluations, checkpoints and stops happen between the orders to the other ranks.
    """

    def _make_parts(self, config: PPOConfig) -> None:
        if self.callbacks.listens("on_step"):
            raise UserError(
                f"callbacks: got one with on_step and ranks: {config.ranks}, whose ranks step their own environments; "
                f"expected other events; or set ranks: 1"
            )
        self._team = self._opened.enter_context(Team(config))
        self.learner = self._opened.enter_context(closing(RankLearner(config, self._team.group)))
        self.envs, self.algorithm = self.learner.envs, self.learner.algorithm
        self.agent, self.buffer = self.learner.agent, self.learner.buffer
        self.device, self.device_reason = self.learner.device, self.learner.device_reason

    def _find_envs(self) -> None:
        """Returns None: callbacks do not reach the environments of the other ranks."""

    @contextmanager
    def _ordered(self, command: Command, first: int = 0, second: int = 0) -> Iterator[None]:
        """Gives an order to the other ranks; a request to stop that one of them got is a request to this one."""
        with self._team.ordered(command, first, second) as stop:
            if stop:
                self.stop.request("signal")
            yield

    def _start(self) -> None:
        with self._ordered(Command.START):
            self.learner.start()

    def _collect(self) -> None:
        steps = self.buffer.steps if self.buffer.position else self._rollout_steps()
        while self.progress.phase == "collect":
            self.between_steps()
            position = self.buffer.position
            some = min(STEPS_PER_ORDER - position % STEPS_PER_ORDER, steps - position)
            with self._ordered(Command.COLLECT, some, steps):
                episodes = self.learner.collect(some, steps)
            self.progress.num_timesteps += some * self.config.num_envs
            self.progress.count(episodes)
            if self.buffer.full:
                self._end_collection()

    def _learn_from_rollout(self, before_rollout: int) -> dict[str, float]:
        with self._ordered(Command.UPDATE, before_rollout):
            return self.learner.update(before_rollout)

    def _trainer_state(self) -> dict[str, Any]:
        with self._ordered(Command.SAVE):
            return self.learner.save()

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        with self._ordered(Command.LOAD):
            return self.learner.load(policy, trainer)


def _choose_trainer(config: TrainConfig) -> type[PPOTrainer]:
    return RankedPPOTrainer if isinstance(config, PPOConfig) and config.ranks > 1 else PPOTrainer


def make_ppo_trainer(
    config: PPOConfig,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: ResumeFrom = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Returns PPO's trainer; see `rl_training.runtime.trainer_factory.make_trainer`.

    Raises:
        SystemExit: `torchrun` has started this process as another rank than 0, and training has ended.
    """
    leave_if_follower(config)
    return make_trainer(_choose_trainer(config), config, callbacks, resume_from=resume_from, stop=stop)


def train_ppo(
    config: PPOConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains PPO without MLflow, held-out evaluation, promotion and handling of signals; `rl_training.train` has them.

    For the arguments, the result and the errors see `rl_training.runtime.trainer_factory.train`.
    """
    leave_if_follower(config)
    return train(_choose_trainer(config), PPOConfig, check_spaces, config, callbacks, resume_from)


load_ppo_policy = partial(load_network_policy, config_type=PPOConfig, make_algorithm=make_ppo)
"""Returns the greedy policy of one of PPO's checkpoints; see `load_network_policy`."""
