"""Environments with odd observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from case_envs.plain import Plain


class Float64Obs(Plain):
    """Declares and returns float64."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float64)

    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class DtypeLie(Plain):
    """Declares float32, returns float64 from reset and a plain list from step."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        return observation.astype(np.float64), info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return observation.tolist(), *rest


class WrongShape(Plain):
    """From its 137th step on an observation has five features."""

    def observe(self) -> Any:
        return np.zeros(5 if self.life_step >= 137 else 4, np.float32)


class NanObs(Plain):
    """One NaN in feature 1, once, at life step 137."""

    def observe(self) -> Any:
        observation = super().observe()
        if self.life_step == 137:
            observation[1] = np.nan
        return observation


class NanEarly(Plain):
    """A NaN in feature 1 at the third step of an episode."""

    def observe(self) -> Any:
        observation = super().observe()
        if self.t == 3:
            observation[1] = np.nan
        return observation


class HugeObs(Plain):
    """A dict of a speed and a float64 position whose number 1 is beyond float32 at the third step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        unbounded = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = spaces.Dict({"position": unbounded, "speed": spaces.Box(-1, 1, (1,), np.float32)})

    def observe(self) -> Any:
        position = np.array([0.0, 1e300 if self.t == 3 else 0.0])
        return {"position": position, "speed": np.zeros(1, np.float32)}


class SharedArray(Plain):
    """Returns the same array every time and changes it in place; feature 0 counts the steps of the episode."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 100, (4,), np.float32)
        self.buffer = np.zeros(4, np.float32)

    def observe(self) -> Any:
        self.buffer[:] = self.t
        return self.buffer


class OutOfBounds(Plain):
    """Feature 2 is 1.5 at the fourth step, above its bound of 1."""

    def observe(self) -> Any:
        observation = super().observe()
        if self.t == 4:
            observation[2] = 1.5
        return observation


class BigImage(Plain):
    """Frames of 84 x 84 x 4 uint8."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def observe(self) -> Any:
        return np.full((84, 84, 4), self.t, np.uint8)


class SmallImage(Plain):
    """Frames of 12 x 16 x 3 uint8; channel 0 shows the step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 255, (12, 16, 3), np.uint8)

    def observe(self) -> Any:
        frame = np.zeros((12, 16, 3), np.uint8)
        frame[..., 0] = self.t
        return frame


class GreyImage(Plain):
    """Noise of 6 x 8 grey pixels; any step ends an episode with a chance of 1 in 12, and half of them are cut by it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 255, (6, 8), np.uint8)

    def observe(self) -> Any:
        return self.np_random.integers(0, 256, (6, 8)).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self.cut = bool(self.np_random.integers(2))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        over = bool(self.np_random.random() < 1 / 12)
        return self.observe(), self.reward(action), over and not self.cut, over and self.cut, {}


class DictObs(Plain):
    """A camera, a position, a gear of three and two switches, each telling the step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Dict(
            {
                "position": spaces.Box(-100.0, 100.0, (2,), np.float64),
                "camera": spaces.Box(0, 255, (12, 16, 3), np.uint8),
                "gear": spaces.Discrete(3, start=1),
                "switches": spaces.MultiBinary(2),
            }
        )

    def observe(self) -> Any:
        return {
            "position": np.array([self.t, -self.t], np.float64),
            "camera": np.full((12, 16, 3), self.t, np.uint8),
            "gear": np.int64(1 + self.t % 3),
            "switches": np.array([self.t % 2, 1], np.int8),
        }


class DiscreteObs(Plain):
    """The observation is the step, of Discrete(choices); ten steps need eleven."""

    def __init__(self, choices: int = 11, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Discrete(choices)

    def observe(self) -> Any:
        return self.t


class RaggedObs(Plain):
    """Lists of unequal length."""

    def observe(self) -> Any:
        return [[0.0], [0.0, 1.0]]


class BadDict(Plain):
    """From the first step on, a key is missing."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Dict({key: spaces.Box(0, 1, (1,), np.float32) for key in "ab"})

    def observe(self) -> Any:
        return {key: np.zeros(1, np.float32) for key in ("a" if self.t else "ab")}


class FloatForPixels(SmallImage):
    """Pixels between 0 and 1, where bytes are declared."""

    def observe(self) -> Any:
        return np.full((12, 16, 3), 0.5)


class TextObs(Plain):
    """Text, which no network here reads."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Text(4)

    def observe(self) -> Any:
        return "abc"


class ThreeOutOfBounds(Plain):
    """Feature 0 is out of bounds from step 2, feature 3 at step 4, and feature 1 is infinite at step 4."""

    def observe(self) -> Any:
        observation = np.zeros(4, np.float32)
        if self.t >= 2:
            observation[0] = 1.5
        if self.t == 4:
            observation[1], observation[3] = np.inf, -7.0
        return observation


class TwoWrongParts(Plain):
    """The dtypes of both parts differ from the declared ones."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        part = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"arm": part, "hand": part})

    def observe(self) -> Any:
        return {"arm": np.zeros(2), "hand": np.zeros(2)}


class NoisyBounds(Plain):
    """Each step another of its twenty features is out of bounds, and the reward is None."""

    length = 20

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 1, (21,), np.float32)

    def observe(self) -> Any:
        observation = np.zeros(21, np.float32)
        observation[self.t] = 2.0 if self.t else 0.0
        return observation

    def reward(self, action: Any) -> Any:
        return None


class OddDtypes(Plain):
    """Observations of four numbers of any dtype, and actions of two numbers of any dtype if `actions` names one."""

    def __init__(self, observations: str = "f4", actions: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 1, (4,), np.dtype(observations))
        if actions:
            self.action_space = spaces.Box(-1.0, 1.0, (2,), np.dtype(actions))

    def observe(self) -> Any:
        return super().observe().astype(self.observation_space.dtype)

    def step(self, action: Any) -> Any:
        if isinstance(self.action_space, spaces.Box) and action.dtype != self.action_space.dtype:
            raise TypeError(f"got {action.dtype}, which is not the declared {self.action_space.dtype}")
        return super().step(action)
