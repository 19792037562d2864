"""A game with three lives that waits for FIRE, with the parts of an Atari game that wrappers use."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np

NOOP, FIRE, RIGHT = range(3)


class Lives(gym.Env):
    """Each life lasts three to six steps from FIRE on, by chance; each RIGHT in play is worth 1.

    An observation holds the lives, whether the ball is in play, and the steps of the game.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = gym.spaces.Box(0.0, 1e6, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, actions=("NOOP", "FIRE", "RIGHT"), render_mode=None):
        self.actions, self.render_mode, self.games, self.lives = actions, render_mode, 0, 0
        self.ale = SimpleNamespace(lives=lambda: self.lives)

    def get_action_meanings(self):
        return list(self.actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.games, self.lives, self.left, self.steps = self.games + 1, 3, 0, 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        reward = float(self.left > 0 and action == RIGHT)
        if self.left > 0:
            self.left -= 1
            self.lives -= self.left == 0
        elif action == FIRE:
            self.left = int(self.np_random.integers(3, 7))
        return self._observe(), reward, self.lives == 0, False, {}

    def render(self):
        return np.full((8, 8, 3), self.steps, np.uint8)

    def _observe(self):
        return np.array([self.lives, self.left > 0, self.steps], np.float32)


gym.register("Lives-v0", Lives, max_episode_steps=60)
