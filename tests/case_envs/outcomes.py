"""Environments with odd rewards and ends of episodes."""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import numpy as np
from gymnasium import spaces

from case_envs.actions import AsymAct
from case_envs.plain import Plain


class ArrayReward(Plain):
    """The reward is an array of shape (1,), and every third step the int 1."""

    def reward(self, action: Any) -> Any:
        return 1 if self.t % 3 == 0 else np.array([1.0])


class NoneReward(Plain):
    """The reward is None."""

    def reward(self, action: Any) -> Any:
        return None


class InfiniteReward(Plain):
    """The reward of the fifth step is infinite."""

    def reward(self, action: Any) -> Any:
        return math.inf if self.t == 5 else 1.0


class FixedLen3(Plain):
    """Three steps of reward 1: every episode has return 3.0 and length 3."""

    length = 3

    def reward(self, action: Any) -> Any:
        return 1.0


class OneStep(FixedLen3):
    """One step of reward 1."""

    length = 1


class CutAtTen(Plain):
    """Reward 1 and one constant observation, truncated at ten: with gamma 0.9 every state is worth 10.0."""

    terminates, truncates = False, True

    def observe(self) -> Any:
        return np.full(4, 0.5, np.float32)

    def reward(self, action: Any) -> Any:
        return 1.0


class EndsAtTen(CutAtTen):
    """Terminates at ten, feature 0 shows the step: with gamma 0.9 the start is worth (1 - 0.9**10) / 0.1 = 6.5132."""

    terminates, truncates = True, False

    def observe(self) -> Any:
        observation = super().observe()
        observation[0] = self.t / 10
        return observation


class BothFlags(EndsAtTen):
    """Sets both flags on the last step, which counts as terminated."""

    truncates = True


class FlagsAsText(Plain):
    """`terminated` is a word."""

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, "no", truncated, info


class Endless(Plain):
    """Episodes have no end, and nothing else is odd."""

    terminates = False

    def observe(self) -> Any:
        return np.zeros(4, np.float32)


class NeverEnds(Plain):
    """Episodes have no end."""

    terminates = False


class RaisesLate(Plain):
    """Raises at the life step `at` of each instance."""

    def __init__(self, at: int = 700, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at = at

    def step(self, action: Any) -> Any:
        if self.life_step + 1 == self.at:
            raise RuntimeError("sensor 3 returned no frame")
        return super().step(action)


class ExitsLate(RaisesLate):
    """Calls `sys.exit(0)` at the life step `at`."""

    def step(self, action: Any) -> Any:
        if self.life_step + 1 == self.at:
            sys.exit(0)
        return Plain.step(self, action)


class DiesLate(RaisesLate):
    """Ends the process at the life step `at`, like a simulator that crashes."""

    def step(self, action: Any) -> Any:
        if self.life_step + 1 == self.at:
            print("license server lost", file=sys.stderr, flush=True)
            os._exit(3)
        return Plain.step(self, action)


class FailsOnReset(Plain):
    """The 60th reset of an instance raises."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resets = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets == 60:
            raise OSError("level file missing")
        return super().reset(**kwargs)


class MuteError(Exception):
    """Has no text: asking for it raises."""

    def __str__(self) -> str:
        raise RuntimeError("str broke")


class RaisesOddly(Plain):
    """The second step raises what `kind` names: an exception without text, one of 4,001 lines, or GeneratorExit."""

    def __init__(self, kind: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind

    def step(self, action: Any) -> Any:
        if self.t == 1:
            raise {
                "mute": MuteError(),
                "long": ValueError("bad state:\n" + "0.25\n" * 4_000),
                "generator": GeneratorExit(),
            }[self.kind]
        return super().step(action)


class HugeReward(Plain):
    """The reward of the fifth step is a float that float32 does not hold."""

    def reward(self, action: Any) -> Any:
        return -1e39 if self.t == 5 else 1.0


class FailsOnClose(Plain):
    """`close` raises, or with `exits` ends the program."""

    def __init__(self, exits: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.exits = exits

    def close(self) -> None:
        if self.exits:
            sys.exit(4)
        raise OSError("port 7 is gone")


class SpoiltLate(AsymAct):
    """A NaN or infinity (as text, which settings are) in an observation or reward, once, at life step `at`."""

    def __init__(self, what: str, value: str, at: int = 137, discrete: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what, self.value, self.at = what, float(value), at
        if discrete:
            self.action_space = spaces.Discrete(2)

    def observe(self) -> Any:
        observation = super().observe()
        if self.what == "observation" and self.life_step == self.at:
            observation[2] = self.value
        return observation

    def reward(self, action: Any) -> Any:
        return self.value if self.what == "reward" and self.life_step == self.at else 1.0
