"""SAC on Pendulum-v1, written out from the package's parts: environment, agent, buffer, and one short loop.

    python examples/sac_pendulum_reference.py --total-timesteps 10_000

It learns what `rl-training train --config sac/pendulum` learns in as many steps, to the bit, and leaves out what a run
needs besides: evaluation on the way, checkpoints, resuming, tracking. Read it to see the algorithm work; train with the
other.
"""

from __future__ import annotations

import argparse

import torch

from rl_training import SACConfig, load_config
from rl_training.algorithms.sac import SAC
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.policy import GreedyPolicy
from rl_training.seeding import episode_seeds


def train(config: SACConfig) -> tuple[SAC, GreedyPolicy]:
    """Trains an agent, and returns it with its greedy policy."""
    envs = TrainingEnvs(config, gamma=config.gamma, scale_actions=True)  # actions in [-1, 1] on this side
    agent = SAC(config, envs.encoder, envs.codec, torch.device("cpu"))
    spaces = envs.encoder.shape, envs.encoder.dtype, envs.codec.shape, envs.codec.dtype
    buffer = ReplayBuffer(config.buffer_size, config.num_envs, *spaces, gamma=config.gamma)
    updates = 0
    envs.start()
    for before in range(0, config.total_timesteps, config.num_envs):
        observation = envs.observation
        action = agent.act(observation, before)
        step = envs.step(action)
        buffer.add(observation, action, step.reward, step.next_observation, step.terminated, step.truncated)
        while updates < config.updates_due(before + config.num_envs):
            agent.update(buffer.sample(config.batch_size, agent.replay_rng), before / config.total_timesteps)
            updates += 1
        for episode in step.episodes:
            print(f"step {before + config.num_envs:,}: return {episode.return_:.1f}")
    envs.close()
    policy = GreedyPolicy(
        encoder=envs.encoder,
        normalizer=None,
        act_greedy=agent.act_greedy,
        codec=envs.codec,
        observation_space=envs.single_observation_space,
        action_space=envs.single_action_space,
    )
    return agent, policy


def judge(policy: GreedyPolicy, config: SACConfig, episodes: int) -> EvaluationResult:
    """Plays held-out episodes."""
    return evaluate_policy(policy, config, episode_seeds(config.evaluation.seed, "held_out", episodes))


def main() -> None:
    """Trains with the settings of `sac/pendulum` and judges the policy."""
    parser = argparse.ArgumentParser(description="SAC on Pendulum-v1, written out.")
    parser.add_argument("--total-timesteps", default="15_000")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--episodes", type=int, default=20, help="held-out episodes at the end")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config("sac/pendulum", {"total_timesteps": arguments.total_timesteps, "seed": arguments.seed})
    assert isinstance(config, SACConfig)
    _, policy = train(config)
    result = judge(policy, config, arguments.episodes)
    print(f"mean return {result.return_mean:.1f} over {result.episodes} held-out episodes")


if __name__ == "__main__":
    main()
