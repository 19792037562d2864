"""An environment of images whose episodes have the same length, and no two frames in common."""

import gymnasium as gym
import numpy as np


class Frames(gym.Env):
    """Noise of 6 x 8 grey pixels."""

    observation_space = gym.spaces.Box(0, 255, (6, 8), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=12):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.draw(), {}

    def step(self, action):
        self.t += 1
        return self.draw(), float(action), self.t == self.length, False, {}

    def draw(self):
        return self.np_random.integers(0, 256, (6, 8)).astype(np.uint8)


gym.register("Frames-v0", Frames)
