"""A plug-in package. Its ids are known only after it is imported."""

import gymnasium as gym

gym.register("trialplug/Walk-v0", entry_point="trialplug.walk:Walk", max_episode_steps=25)
gym.register("PlugWalk-v0", entry_point="trialplug.walk:Walk", max_episode_steps=25)
