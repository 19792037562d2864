"""An environment in which every action earns 0, in endless episodes: its soft value is the policy's entropy alone."""

import gymnasium as gym
import numpy as np


class Idle(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


gym.register("Idle-v0", Idle, max_episode_steps=50)
