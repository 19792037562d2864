"""Tiny environments for tests, one oddity each, registered on import: `gymnasium.make("case_envs:NanObs-v0")`.

Unless its class says otherwise, an environment has four float features that tell the step, two actions of which 1 is
worth a reward of 1, and ends (terminated) after ten steps: best return 10.0.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Plain(gym.Env[Any, Any]):
    """No oddity: the control."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    length = 10
    terminates = True
    truncates = False

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.t = 0
        self.life_step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        self.life_step += 1
        over = self.t >= self.length
        return self.observe(), self.reward(action), over and self.terminates, over and self.truncates, {}

    def observe(self) -> Any:
        return np.full(4, self.t / self.length, np.float32)

    def reward(self, action: Any) -> Any:
        return 1.0 if int(np.asarray(action).reshape(-1)[0]) == 1 else 0.0

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


# Observations


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
    """A NaN in feature 1 at every third step of an episode, an infinite reward at the fifth."""

    def observe(self) -> Any:
        observation = super().observe()
        if self.t == 3:
            observation[1] = np.nan
        return observation

    def reward(self, action: Any) -> Any:
        return math.inf if self.t == 5 else 1.0


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
    """The observation is the step, of Discrete(11)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Discrete(11)

    def observe(self) -> Any:
        return self.t


# Actions


class MultiDiscAct(Plain):
    """MultiDiscrete([3, 4]); reward 1 for [2, 0] alone; refuses another shape."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.MultiDiscrete([3, 4])

    def reward(self, action: Any) -> Any:
        chosen = np.asarray(action)
        if chosen.shape != (2,):
            raise ValueError(f"action shape {chosen.shape}, wanted (2,)")
        return 1.0 if chosen[0] == 2 and chosen[1] == 0 else 0.0


class MultiBinaryAct(Plain):
    """MultiBinary(3); reward is the share of ones."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.MultiBinary(3)

    def reward(self, action: Any) -> Any:
        chosen = np.asarray(action)
        if chosen.shape != (3,) or not np.isin(chosen, (0, 1)).all():
            raise ValueError(f"action {chosen}, wanted three of 0 or 1")
        return float(chosen.mean())


class OffsetAct(Plain):
    """Discrete(3, start=-1): legal are -1, 0 and 1; reward 1 for -1 alone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Discrete(3, start=-1)

    def reward(self, action: Any) -> Any:
        if int(action) not in (-1, 0, 1):
            raise ValueError(f"illegal action {int(action)}")
        return 1.0 if int(action) == -1 else 0.0


class AsymAct(Plain):
    """Box from [0, -pi/4] to [5, pi/4], raises outside; reward -|a0 - 4| - |a1|, best return 0.0 with [4, 0]."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        low, high = np.array([0, -math.pi / 4], np.float32), np.array([5, math.pi / 4], np.float32)
        self.action_space = spaces.Box(low, high, dtype=np.float32)

    def reward(self, action: Any) -> Any:
        chosen = np.asarray(action, np.float64)
        if (chosen < self.action_space.low - 1e-5).any() or (chosen > self.action_space.high + 1e-5).any():
            raise ValueError(f"action {chosen} outside {self.action_space}")
        return float(-abs(chosen[0] - 4.0) - abs(chosen[1]))


class UnboundedAct(Plain):
    """Box without bounds; reward -|a|."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reward(self, action: Any) -> Any:
        return float(-np.abs(action).sum())


class PickyAct(Plain):
    """Declares Discrete(3) and raises on 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Discrete(3)

    def reward(self, action: Any) -> Any:
        if int(action) == 2:
            raise ValueError("lever 2 is not connected")
        return 1.0


class MutatesAction(Plain):
    """Multiplies the action array that it is handed by ten, in place; reward -|a| after that."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 10.0
        return super().step(action)

    def reward(self, action: Any) -> Any:
        return float(-np.abs(action).sum())


# Rewards


class ArrayReward(Plain):
    """The reward is an array of shape (1,), and every third step the int 1."""

    def reward(self, action: Any) -> Any:
        return 1 if self.t % 3 == 0 else np.array([1.0])


class NoneReward(Plain):
    """The reward is None."""

    def reward(self, action: Any) -> Any:
        return None


# Episodes


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
    """Both flags on the last step, which counts as terminated."""

    truncates = True


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
    """Ends its whole process at the life step `at`, as a simulator that crashes."""

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


# The API itself


class NoSeedReset(Plain):
    """`reset` takes no arguments."""

    def reset(self) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        self.t = 0
        return self.observe(), {}


class OldApi(Plain):
    """As gym before 0.26: reset returns the observation alone, step four values."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]
        self.t = 0
        return self.observe()

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class SpacesAsClasses(Plain):
    """Hands over the classes of its spaces."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box
        self.action_space = spaces.Discrete


class SpaceChangesLater(Plain):
    """From the fourth reset on space and observations have five features."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resets = 0
        self.features = 4

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets > 3:
            self.features = 5
            self.observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
        return super().reset(**kwargs)

    def observe(self) -> Any:
        return np.zeros(self.features, np.float32)


class NeedsToken(Plain):
    """Takes a credential."""

    def __init__(self, api_token: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not api_token:
            raise ValueError("api_token is required")


class OddInfo(Plain):
    """Its infos hold arrays whose shape varies, objects, and an `episode` of its own."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"path": np.zeros(self.t), "engine": object(), "episode": {"r": -1.0}, "speed": float(self.t)}


# Randomness


class SeedEcho(Plain):
    """Feature 0 is drawn at each reset and shows which random state was there."""

    mark = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.t = 0
        self.mark = float(np.float32(self.np_random.uniform(-1, 1)))
        return self.observe(), {"mark": self.mark}

    def observe(self) -> Any:
        observation = super().observe()
        observation[0] = self.mark
        return observation


class NotDeterministic(Plain):
    """Feature 3 is noise that no seed controls."""

    def observe(self) -> Any:
        observation = super().observe()
        observation[3] = np.random.default_rng().uniform(-1, 1)
        return observation


class Coin(Plain):
    """One step; reward 1 with chance 0.5 whatever the action."""

    length = 1

    def reward(self, action: Any) -> Any:
        return float(self.np_random.random() < 0.5)


class Jackpot(Plain):
    """One step; 100 with chance 0.02, else 0: true mean 2.0."""

    length = 1

    def reward(self, action: Any) -> Any:
        return 100.0 if self.np_random.random() < 0.02 else 0.0


class ShortOrLong(Plain):
    """A coin at reset: one step with return 0, or fifty with return 50. True mean 25.0."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.t = 0
        self.length = 50 if self.np_random.random() < 0.5 else 1
        return self.observe(), {}

    def reward(self, action: Any) -> Any:
        return 1.0 if self.length == 50 else 0.0


# Processes


class SlowStep(Plain):
    """A step takes 0.2 s."""

    def step(self, action: Any) -> Any:
        time.sleep(0.2)
        return super().step(action)


class HangsInStep(Plain):
    """A step takes two minutes."""

    def step(self, action: Any) -> Any:
        time.sleep(120)
        return super().step(action)


class SpawnsChild(SlowStep):
    """Starts a process, as an external simulator would be; `close` ends it, and it ends by itself after 120 s."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])

    def child_pid(self) -> int:
        return self.child.pid

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(timeout=5)


for _name, _class in list(globals().items()):
    if isinstance(_class, type) and issubclass(_class, Plain) and f"{_name}-v0" not in gym.registry:
        gym.register(f"{_name}-v0", entry_point=f"{__name__}:{_name}")
