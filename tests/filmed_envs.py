"""Environments that render in different ways. Each step of an episode shows its own shade of grey."""

import os
import time

import gymnasium as gym
import numpy as np


class Filmed(gym.Env):
    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(0.0, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=30, token=None, render_mode=None):
        self.length, self.token, self.render_mode = length, token, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.offset = (options or {}).get("start", 0), int(self.np_random.integers(1000))
        return np.array([self.offset], np.float32), {}

    def step(self, action):
        self.steps += 1
        return (
            np.array([self.offset + self.steps], np.float32),
            1.0,
            self.steps == self.length,
            False,
            {"is_success": self.offset % 2 == 0},
        )

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((400, 600, 3), self.steps % 256, np.uint8)


class Hangs(Filmed):
    def render(self):
        time.sleep(600)


class Dies(Filmed):
    def render(self):
        os._exit(3)


class NamesItsToken(Filmed):
    def render(self):
        raise RuntimeError(f"no display for {self.token}")


class NoPicture(Filmed):
    def render(self):
        return None


class Noise(Filmed):
    def render(self):
        return np.random.default_rng(self.steps).integers(0, 256, (80, 120, 3), np.uint8)


class Fast(Filmed):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012


class Blind(Filmed):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


for one in (Filmed, Hangs, Dies, NamesItsToken, NoPicture, Noise, Fast, Blind):
    gym.register(f"{one.__name__}-v0", one)
