"""Environments that misuse the interface itself."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from case_envs.plain import Plain


class NoSeedReset(Plain):
    """`reset` takes no arguments."""

    def reset(self) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        self.t = 0
        return self.observe(), {}


class OldApi(Plain):
    """The interface of gym before 0.26: reset returns the observation alone, step four values."""

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


class ActionSpaceChangesLater(Plain):
    """From the fourth reset on there are three actions."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resets = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets > 3:
            self.action_space = spaces.Discrete(3)
        return super().reset(**kwargs)


class BothSpacesChange(Plain):
    """Hands out wider spaces from the first step on; observations stay within both."""

    def step(self, action: Any) -> Any:
        self.observation_space = spaces.Box(-2.0, 2.0, (4,), np.float32)
        self.action_space = spaces.Discrete(3)
        return super().step(action)


class NeedsToken(Plain):
    """Takes a credential."""

    def __init__(self, api_token: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not api_token:
            raise ValueError("api_token is required")
        self.api_token = api_token


class TellsItsToken(NeedsToken):
    """Repeats its credential in an error or in output, at the place that `at` names."""

    def __init__(self, at: str = "step", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at = at
        if at == "making":
            self._fail()

    def reset(self, **kwargs: Any) -> Any:
        if self.at == "reset":
            self._fail()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.at == "exit":
            print(f"bye, {self.api_token}", file=sys.stderr, flush=True)
            os._exit(3)
        if self.at == "warning":
            warnings.warn(f"{self.api_token} runs out soon", stacklevel=2)
        if self.at == "step":
            self._fail()
        return super().step(action)

    def close(self) -> None:
        if self.at == "close":
            self._fail()

    def _fail(self) -> None:
        try:
            raise KeyError(f"no session for {self.api_token}")
        except KeyError as error:
            raise ConnectionError(f"http://sim/?key={self.api_token}: refused") from error


class RefusesItsToken(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that can't be made and says why."""

    def __init__(self, env: Any, api_token: str) -> None:
        raise PermissionError(f"{api_token} is not valid any more")


class OddInfo(Plain):
    """An environment whose infos hold arrays of varying shape, objects, and its own `episode`."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"path": np.zeros(self.t), "engine": object(), "episode": {"r": -1.0}, "speed": float(self.t)}
