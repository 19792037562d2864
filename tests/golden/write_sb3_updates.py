"""Writes `sb3_updates.json`: what Stable-Baselines3 learns from recorded rollouts and batches.

In an environment of its own:

    pip install -r benchmarks/speed/sb3.txt
    python tests/golden/write_sb3_updates.py

A layer is [weights, biases], with weights [inputs, outputs]. All learn with torch on one thread.
"""

import json
from importlib.metadata import version
from pathlib import Path

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch
from torch import nn

UPDATES, BATCH, WARMUP = 8, 16, 40
HIDDEN = [8, 8]
torch.set_num_threads(1)


class Recorder(gym.Wrapper):
    """Keeps each transition as the environment gave it."""

    def __init__(self, env):
        super().__init__(env)
        self.steps = []

    def step(self, action):
        result = self.env.step(action)
        self.steps.append(result[:4])
        return result


def numbers(array):
    """Nested lists of numbers, which are equal as float32."""
    array = np.asarray(array.detach() if isinstance(array, torch.Tensor) else array)
    if array.dtype.kind == "f":
        return json.loads(
            json.dumps(array.astype(np.float64).tolist()), parse_float=lambda text: float(f"{float(text):.9g}")
        )
    return array.astype(int).tolist()


def layers(*modules):
    """The linear layers of some modules, in their order."""
    linear = [each for module in modules for each in module.modules() if isinstance(each, nn.Linear)]
    return [[numbers(each.weight.T), numbers(each.bias)] for each in linear]


def record_ppo(env_id, steps_of_an_episode):
    """One update from a rollout with terminated and cut episodes."""
    env = Recorder(gym.make(env_id, max_episode_steps=steps_of_an_episode))
    model = sb3.PPO(
        "MlpPolicy", env, n_steps=64, batch_size=BATCH, n_epochs=3, seed=4, device="cpu",
        policy_kwargs={"net_arch": HIDDEN},
    )  # fmt: skip
    policy, permutations, record = model.policy, [], {}
    permute, train = np.random.permutation, model.train

    def weights():
        extractor = policy.mlp_extractor
        found = {"policy": layers(extractor.policy_net, policy.action_net)}
        found["value"] = layers(extractor.value_net, policy.value_net)
        return found | ({"log_std": numbers(policy.log_std)} if hasattr(policy, "log_std") else {})

    def draw(count):
        permutations.append(permute(count))
        return permutations[-1]

    def learn():
        buffer, record["before"] = model.rollout_buffer, weights()
        for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
            record[name] = numbers(getattr(buffer, name)[:, 0])
        np.random.permutation = draw
        train()
        np.random.permutation = permute

    model.train = learn
    model.learn(64)
    observations, rewards, terminated, truncated = zip(*env.steps, strict=True)
    logged = model.logger.name_to_value
    return record | {
        "next_observations": numbers(np.stack(observations).astype(np.float32)),
        "rewards": numbers(np.array(rewards)),
        "terminated": numbers(np.array(terminated)),
        "truncated": numbers(np.array(truncated)),
        "permutations": numbers(np.stack(permutations)),
        "after": weights(),
        "explained_variance": float(logged["train/explained_variance"]),
    }


def record_off_policy(algorithm, env_id, weights, draw_noise, network=None, **arguments):
    """Some updates from batches that were drawn from a buffer of random actions."""
    env = gym.make(env_id, max_episode_steps=15)
    model, other = (
        algorithm(
            "MlpPolicy", env, seed=seed, device="cpu", learning_starts=1_000, batch_size=BATCH,
            policy_kwargs={"net_arch": HIDDEN, **(network or {})}, **arguments,
        )
        for seed in (4, 5)
    )  # fmt: skip
    model.learn(WARMUP)
    # Targets that differ from the networks show which of the two an update takes.
    for name, own in model.policy.named_children():
        if name.endswith("_target"):
            own.load_state_dict(getattr(other.policy, name).state_dict())
    batches, sample = [], model.replay_buffer.sample

    def record_batch(*args, **kwargs):
        batches.append(sample(*args, **kwargs))
        return batches[-1]

    model.replay_buffer.sample = record_batch
    before = weights(model)
    torch.manual_seed(6)
    model.train(gradient_steps=UPDATES, batch_size=BATCH)
    torch.manual_seed(6)
    return {
        "before": before,
        "batches": [
            {name: numbers(getattr(batch, name)) for name in ("observations", "actions", "next_observations")}
            | {name: numbers(getattr(batch, name)[:, 0]) for name in ("rewards", "dones")}
            for batch in batches
        ],
        "noise": [numbers(draw_noise(*batch.actions.shape)) for batch in batches],
        "after": weights(model),
    }


def dqn_weights(model):
    return {"q": layers(model.q_net), "target": layers(model.q_net_target)}


def quantile_weights(model):
    return {"q": by_action(model.quantile_net), "target": by_action(model.quantile_net_target)}


def by_action(network):
    """The layers, with the quantiles of an action side by side instead of those of all actions at one level."""
    *hidden, (weights, biases) = layers(network)
    shape = (-1, network.n_quantiles, int(network.action_space.n))
    head = [np.array(part).reshape(shape).transpose(0, 2, 1) for part in (weights, biases)]
    return [*hidden, [head[0].reshape(len(weights), -1).tolist(), head[1].reshape(-1).tolist()]]


def critic_weights(critic):
    return [layers(network) for network in critic.q_networks]


def sac_weights(model):
    actor = layers(model.actor.latent_pi)
    means, deviations = layers(model.actor.mu)[0], layers(model.actor.log_std)[0]
    head = [np.concatenate(pair, axis=-1).tolist() for pair in zip(means, deviations, strict=True)]
    return {
        "actor": [*actor, head],
        "critics": critic_weights(model.critic),
        "targets": critic_weights(model.critic_target),
        "log_alpha": numbers(model.log_ent_coef),
    }


def td3_weights(model):
    return {
        "actor": layers(model.actor.mu),
        "target_actor": layers(model.actor_target.mu),
        "critics": critic_weights(model.critic),
        "targets": critic_weights(model.critic_target),
    }


def sac_noise(batch, dims):
    """Noise of the next action and of the action, which is drawn first."""
    noise, next_noise = (torch.normal(torch.zeros(batch, dims), torch.ones(batch, dims)) for _ in range(2))
    return torch.stack([next_noise, noise])


def td3_noise(batch, dims):
    return torch.empty(batch, dims).normal_(0, 0.2) / 0.2


record = {
    "versions": {name: version(name) for name in ("stable-baselines3", "sb3-contrib", "gymnasium", "torch", "numpy")},
    "ppo": {"CartPole-v1": record_ppo("CartPole-v1", 15), "Pendulum-v1": record_ppo("Pendulum-v1", 15)},
    "dqn": record_off_policy(sb3.DQN, "CartPole-v1", dqn_weights, lambda *shape: torch.zeros(0), learning_rate=1e-3),
    "qr_dqn": record_off_policy(
        sb3_contrib.QRDQN, "CartPole-v1", quantile_weights, lambda *shape: torch.zeros(0), network={"n_quantiles": 5}
    ),
    "sac": record_off_policy(sb3.SAC, "Pendulum-v1", sac_weights, sac_noise),
    "tqc": record_off_policy(
        sb3_contrib.TQC,
        "Pendulum-v1",
        sac_weights,
        sac_noise,
        network={"n_quantiles": 5},
        top_quantiles_to_drop_per_net=1,
    ),
    "td3": record_off_policy(sb3.TD3, "Pendulum-v1", td3_weights, td3_noise),
}
Path(__file__).with_name("sb3_updates.json").write_text(json.dumps(record) + "\n")
