"""SAC on Pendulum-v1 as one short loop, built from the package's parts: environment, agent and replay buffer.

    python examples/sac_pendulum_reference.py --total-timesteps 10_000

The script learns the same weights, to the last bit, as `rl-training train --config sac/pendulum` with the same number
of steps. It leaves out everything else that a run needs: evaluation during training, checkpoints, resuming, tracking.
Read it to see how the algorithm works, and use the command to train.
"""

from __future__ import annotations

import argparse

import torch

from rl_training import SACConfig, load_config
from rl_training.algorithms.continuous.sac import SAC
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.policy import GreedyPolicy
from rl_training.seeding import episode_seeds


def train(config: SACConfig) -> tuple[SAC, GreedyPolicy]:
    """Trains an agent; returns the agent and its greedy policy."""
    envs = TrainingEnvs(config, gamma=config.gamma, scale_actions=True)  # the policy's actions lie in [-1, 1]
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


def evaluate(policy: GreedyPolicy, config: SACConfig, episodes: int) -> EvaluationResult:
    """Evaluates a policy on held-out episodes."""
    return evaluate_policy(policy, config, episode_seeds(config.evaluation.seed, "held_out", episodes))


def main() -> None:
    """Trains with the settings of `sac/pendulum` and evaluates the policy."""
    parser = argparse.ArgumentParser(description="Train SAC on Pendulum-v1 in one short loop.")
    parser.add_argument("--total-timesteps", default="15_000")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--episodes", type=int, default=20, help="number of held-out episodes for the final evaluation")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config("sac/pendulum", {"total_timesteps": arguments.total_timesteps, "seed": arguments.seed})
    assert isinstance(config, SACConfig)
    _, policy = train(config)
    result = evaluate(policy, config, arguments.episodes)
    print(f"mean return {result.return_mean:.1f} over {result.episodes} held-out episodes")


if __name__ == "__main__":
    main()
