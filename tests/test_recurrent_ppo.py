"""PPO with a memory: what it remembers and forgets, what it learns, and what it refuses."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.seeding import np_random

from rl_training.algorithms.recurrent_ppo import RecurrentPPO, make_ppo
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.sequence_buffer import SequenceBuffer
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import ConfigError
from rl_training.networks.recurrent.recurrent_actor_critic import Sequences
from rl_training.runtime.loop_parts.rollout import complete_rollout, take_step
from rl_training.runtime.trainers.ppo_trainer import train_ppo
from rl_training.seeding import episode_seeds
from tests.ppo_parts import go_on
from tests.recurrent_parts import collect, make_buffer, make_recurrent, random_dones


def settings(env: str, **fields: Any) -> PPOConfig:
    network = {"hidden": [8], "recurrent": "lstm", "recurrent_size": 6, **fields.pop("network", {})}
    small = {
        "num_envs": 2,
        "rollout_steps": 12,
        "batch_size": 24,
        "total_timesteps": 240,
        "evaluation": {"every": 10**6},
    }
    return PPOConfig(env_id=f"case_envs:{env}-v0", network=network, **{**small, **fields})


def play_rollout(config: PPOConfig) -> tuple[RecurrentPPO, SequenceBuffer, list[Any]]:
    """Returns the agent, a complete rollout, and each of its steps."""
    with closing(TrainingEnvs(config, gamma=config.gamma)) as envs:
        ppo = make_ppo(config, envs.encoder, envs.codec, torch.device("cpu"))
        assert isinstance(ppo, RecurrentPPO)
        buffer = ppo.make_buffer(config.num_envs, envs.encoder, envs.codec)
        envs.start()
        steps = []
        while not buffer.full:
            steps.append(take_step(envs, ppo, buffer))
        complete_rollout(envs, ppo, buffer)
        steps.append(envs.normalized().copy())
    return ppo, buffer, steps


def values_of(ppo: RecurrentPPO, observations: np.ndarray) -> np.ndarray:
    """The values of the observations of one episode, evaluated as a whole from an empty memory."""
    empty = np.zeros((1, *ppo.network.memory_shape), np.float32)
    return ppo.network(Sequences(observations, np.array([len(observations)]), empty))[1][:, 0]


def test_a_cut_episode_bootstraps_from_its_final_observation_after_all_of_its_observations() -> None:
    ppo, buffer, steps = play_rollout(settings("CutAtTen"))
    final = steps[9].next_normalized
    assert steps[9].truncated.all()
    for env in range(2):
        episode = np.concatenate([buffer.obs[:10, env], final[env : env + 1]])
        values = values_of(ppo, episode)
        np.testing.assert_allclose(buffer.values[:10, env], values[:10], atol=1e-6)
        assert buffer.final_values[9, env] == pytest.approx(values[10], abs=1e-6)
        advantage = buffer.rewards[9, env] + 0.99 * values[10] - values[9]
        assert buffer.advantages[9, env] == pytest.approx(advantage, abs=1e-5)
        assert abs(values[10] - values_of(ppo, episode[10:])[0]) > 1e-3  # what a reset memory would give


def test_the_next_episode_begins_with_an_empty_memory_and_the_rollout_ends_with_the_carried_one() -> None:
    ppo, buffer, steps = play_rollout(settings("CutAtTen"))
    for env in range(2):
        episode = np.concatenate([buffer.obs[10:, env], steps[-1][env : env + 1]])
        values = values_of(ppo, episode)
        np.testing.assert_allclose(buffer.values[10:, env], values[:2], atol=1e-6)
        advantage = buffer.rewards[11, env] + 0.99 * values[2] - values[1]
        assert buffer.advantages[11, env] == pytest.approx(advantage, abs=1e-5)


def test_memories_are_carried_from_one_rollout_to_the_next_and_emptied_by_ends() -> None:
    ppo = make_recurrent()
    buffer = make_buffer(ppo)
    dones = np.zeros((8, 4), bool)
    dones[7, 2] = True
    collect(ppo, buffer, dones)
    carried = ppo.state.memories.copy()
    assert [bool(memory.any()) for memory in carried] == [True, True, False, True]
    collect(ppo, buffer)
    np.testing.assert_array_equal(buffer.memories[0], carried)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_ratio_is_one_and_the_values_are_the_rollouts_before_the_first_step(kind: str) -> None:
    ppo = make_recurrent(kind)
    buffer = make_buffer(ppo)
    collect(ppo, buffer)  # so that the next rollout begins with memories
    collect(ppo, buffer, random_dones(buffer))
    for minibatch in buffer.iter_minibatches(8, buffer.draw_order(np.random.default_rng(0))):
        measured = ppo._gradient(minibatch, clip_range=1e-5)
        assert measured.clip_fraction == 0.0  # no ratio differs from 1 by more than 1e-5
        expected = float(np.square(minibatch.returns - minibatch.values).mean())
        assert measured.value_loss == pytest.approx(expected, rel=1e-4)


def test_both_recurrent_layers_learn() -> None:
    ppo = make_recurrent(learning_rate=0.01)
    before = ppo.policy_state()
    ppo.update(collect(ppo, make_buffer(ppo)), 0.0, go_on)
    after = ppo.policy_state()
    assert all(bool((before[name] != after[name]).any()) for name in before)


def recall(tmp_path: Path, recurrent: str | None) -> np.ndarray:
    """Returns the returns of 40 greedy episodes of `Recall`, after training."""
    network = {"hidden": [], "recurrent": recurrent, **({"recurrent_size": 16} if recurrent else {})}
    config = PPOConfig(
        env_id="case_envs:Recall-v0", num_envs=16, rollout_steps=20, batch_size=160, epochs=10, learning_rate=0.02,
        learning_rate_schedule="linear", gae_lambda=1.0, total_timesteps=4_800, network=network, run_dir=tmp_path,
        evaluation={"every": 4_800, "episodes": 40},
    )  # fmt: skip
    return np.array(train_ppo(config).metrics["eval/return_mean"])


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
def test_a_cue_is_remembered_for_four_steps(tmp_path: Path, recurrent: str) -> None:
    assert recall(tmp_path, recurrent) == 1.0  # every episode


def test_without_a_memory_the_same_cue_is_a_guess(tmp_path: Path) -> None:
    # A greedy policy takes the same last action in each episode, so its score is the share of cues that equal it.

    cues = [int(np_random(seed)[0].integers(2)) for seed in episode_seeds(0, "evaluation", 40)]
    assert recall(tmp_path, None) in (pytest.approx(np.mean(cues)), pytest.approx(1 - np.mean(cues)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_length": 5}, r"sequence_length: got 5, expected a divisor of rollout_steps = 12"),
        (
            {"batch_size": 16},
            r"batch_size: got 16, expected a multiple of 12, because minibatches consist of sequences",
        ),
        ({"sequence_length": 4, "batch_size": 6}, r"batch_size: got 6, expected a multiple of 4"),
        ({"ranks": 2}, r"ranks: got 2 with network.recurrent: lstm, which learns in one process; set ranks: 1"),
        ({"network": {"recurrent": None}}, r"network.recurrent_size: got 6 without network.recurrent; set"),
        (
            {"network": {"recurrent": None, "recurrent_size": 256}, "sequence_length": 4},
            r"sequence_length: got 4 without network.recurrent; set network.recurrent: lstm or gru, or leave",
        ),
    ],
)
def test_settings_that_a_memory_cannot_meet_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings("Plain", **fields)
