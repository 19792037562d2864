"""One rank's part of PPO's training: its environments, its rollout, and the algorithm that all ranks share.

All ranks call the same methods in the same order, rank 0 by itself and the others by its orders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from rl_training.algorithms.ranked_ppo import RankedPPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_memory import check_memory
from rl_training.distributed.group import Group
from rl_training.distributed.moments import combine_ranks
from rl_training.envs.training_envs import Episode, TrainingEnvs
from rl_training.runtime.loop_parts.rollout import complete_rollout, take_step
from rl_training.runtime.network_trainer import NetworkAgent, choose_device
from rl_training.runtime.ranks.states import join_parts, read_state, select_part, write_state
from rl_training.system.constructor_cleanup import close_on_error


class RankLearner:
    """The part of one rank.

    Args:
        config: The settings of the run.
        group: The connection to the other ranks.

    Raises:
        ConfigError: There is no GPU for each rank, or a rollout does not fit into memory.
        EnvironmentRefused: The environments can't be made.
    """

    @close_on_error
    def __init__(self, config: PPOConfig, group: Group) -> None:
        self._opened, self._group = ExitStack(), group
        own = config.model_copy(update={"num_envs": config.num_envs // config.ranks})
        self.envs = self._opened.enter_context(closing(TrainingEnvs(own, gamma=config.gamma)))
        encoder, codec = self.envs.encoder, self.envs.codec
        device, self.device_reason = choose_device(config, encoder)
        self.device = group.choose_gpu(device)
        check_memory(own, encoder, codec)
        self.algorithm = RankedPPO(config, encoder, codec, self.device, group)
        self.agent = NetworkAgent(self.envs, self.algorithm)
        self.buffer = self.algorithm.make_buffer(own.num_envs, encoder, codec)
        for normalizer in (self.envs.observation_normalizer, self.envs.reward_normalizer):
            if normalizer is not None:
                normalizer.statistics.combine = partial(combine_ranks, group)

    def start(self) -> None:
        """Takes rank 0's weights and statistics, which may be those of another run, and begins the first episodes."""
        normalizer, algorithm = self.envs.observation_normalizer, self.algorithm
        state = {
            "weights": algorithm.policy_state(),
            "algorithm": algorithm.state_dict(),
            "observation_normalizer": normalizer.state_dict() if normalizer is not None else None,
        }
        state = read_state(self._group.send_to_all(None if self._group.rank else write_state(state)))
        algorithm.load_policy_state(state["weights"])
        algorithm.load_state_dict(state["algorithm"])
        if normalizer is not None:
            normalizer.load_state_dict(state["observation_normalizer"])
        self.envs.start(algorithm.share)

    def load(self, policy: Mapping[str, Any] | None, trainer: Mapping[str, Any] | None) -> list[int]:
        """Restores the states of a checkpoint, which rank 0 passes; the others pass None.

        Returns:
            On rank 0, the indices of the environments of all ranks whose episode could not be replayed.
        """
        data = None
        if policy is not None and trainer is not None:
            names = ("algorithm", "envs", "buffer", "observation")
            data = write_state({"policy": dict(policy), "trainer": {name: trainer[name] for name in names}})
        state = read_state(self._group.send_to_all(data))
        share, part = self.algorithm.share, select_part(state["trainer"], self.algorithm.share)
        self.buffer.load_state_dict(part["buffer"])
        fresh = self.agent.load_states(state["policy"], part)
        if fresh and 0 < self.buffer.position < self.buffer.steps:
            self.buffer.cut_newest(fresh, self.algorithm.value(part["observation"]))
        each = self._group.collect(json.dumps([share.first + i for i in fresh]).encode())
        return [index for data in each for index in json.loads(data)]

    def collect(self, steps: int, rollout_steps: int) -> list[Episode]:
        """Takes some steps of a rollout, and completes it after its last one.

        Args:
            steps: Number of steps.
            rollout_steps: The length of the rollout.

        Returns:
            On rank 0, the episodes of all ranks that ended, in the order in which one rank would count them.
        """
        if self.buffer.position == 0:
            self.buffer.reset(rollout_steps)
        first, ended = self.algorithm.share.first, list[tuple[Any, ...]]()
        for t in range(steps):
            episodes = take_step(self.envs, self.algorithm, self.buffer).episodes
            ended += [(t, first + each.env_index, *each[1:3], dict(each.numbers)) for each in episodes]
        if self.buffer.full:
            complete_rollout(self.envs, self.algorithm, self.buffer)
        each = self._group.collect(json.dumps(ended).encode() if ended else b"")
        everyone = [entry for data in each if data for entry in json.loads(data)]
        return [Episode(*entry[1:]) for entry in sorted(everyone, key=lambda entry: entry[:2])]

    def update(self, before_rollout: int) -> dict[str, float]:
        """Learns from the full rollout, then empties it.

        Args:
            before_rollout: The number of environment steps before the rollout.

        Returns:
            The metrics, which are the same on all ranks.
        """
        progress = before_rollout / self.algorithm.config.total_timesteps
        metrics = self.algorithm.update(self.buffer, progress, _go_on)
        self.buffer.reset()
        return metrics

    def save(self) -> dict[str, Any]:
        """Returns the training state of all ranks on rank 0, and an empty one on the others."""
        self.algorithm.acting.complete(self.buffer)
        part = {
            **self.agent.trainer_state(),
            "buffer": self.buffer.state_dict(),
            "observation": self.envs.normalized().copy(),  # [n, O]; follows the newest step
        }
        each = self._group.collect(write_state({**part, "algorithm": None} if self._group.rank else part))
        return join_parts([read_state(data) for data in each]) if each else {}

    def close(self) -> None:
        """Closes the environments."""
        self._opened.close()


def _go_on() -> None:
    """Never stops an update, because all ranks must stop at the same step."""
