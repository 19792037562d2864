"""Helpers of the tests of the off-policy trainers: small settings, and a record of events."""

from typing import Any

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.runtime.callbacks import Callback, TrainerState

COMMON: dict[str, Any] = {
    "seed": 7,
    "total_timesteps": 3_000,
    "learning_rate": 0.001,
    "learning_starts": 200,
    "evaluation": {"every": 100_000, "episodes": 3, "num_envs": 2},
    "checkpoint": {"every": 100_000},
    "network": {"hidden": [32, 32]},
}


def dqn(env: str = "Plain", **fields: Any) -> DQNConfig:
    """Returns DQN settings on an environment of `case_envs`, or on any other by its complete id."""
    own = {"batch_size": 32, "buffer_size": 2_000, "target_update_every": 250, "exploration": {"fraction": 0.5}}
    return DQNConfig.model_validate({**COMMON, "env_id": _id(env), **own, **fields})


def sac(env: str = "AsymAct", **fields: Any) -> SACConfig:
    """Returns SAC settings; see `dqn`."""
    own = {"batch_size": 64, "buffer_size": 3_000, "gamma": 0.9, "tau": 0.01}
    return SACConfig.model_validate({**COMMON, "env_id": _id(env), **own, **fields})


def td3(env: str = "AsymAct", **fields: Any) -> TD3Config:
    """Returns TD3 settings; see `dqn`."""
    own = {"batch_size": 64, "buffer_size": 3_000, "gamma": 0.9, "tau": 0.01}
    return TD3Config.model_validate({**COMMON, "env_id": _id(env), **own, **fields})


def tqc(env: str = "AsymAct", **fields: Any) -> TQCConfig:
    """Returns TQC settings; see `dqn`."""
    own = {"batch_size": 64, "buffer_size": 3_000, "gamma": 0.9, "tau": 0.01}
    return TQCConfig.model_validate({**COMMON, "env_id": _id(env), **own, **fields})


def _id(env: str) -> str:
    return env if "-v" in env else f"case_envs:{env}-v0"


class Events(Callback):
    """Records the events and their metrics, `time/*` apart."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.points: dict[tuple[str, int], float] = {}

    def _record(self, name: str, state: TrainerState) -> None:
        self.seen.append((name, state.num_timesteps))
        if name != "end":
            for key, value in state.metrics.items():
                if not key.startswith("time/"):
                    self.points[key, state.num_timesteps] = value

    def on_train_start(self, state: TrainerState) -> None:
        self._record("start", state)

    def on_collect_end(self, state: TrainerState) -> None:
        self._record("collect", state)

    def on_update_end(self, state: TrainerState) -> None:
        self._record("update", state)

    def on_eval_end(self, state: TrainerState) -> None:
        self._record("eval", state)

    def on_checkpoint_end(self, state: TrainerState) -> None:
        self._record("checkpoint", state)

    def on_train_end(self, state: TrainerState) -> None:
        self._record("end", state)

    def values(self, key: str) -> dict[int, float]:
        """Returns one metric's values by step."""
        return {step: value for (name, step), value in self.points.items() if name == key}


class StopsAt(Events):
    """Asks for a stop at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_update_end(self, state: TrainerState) -> None:
        super().on_update_end(state)
        if state.num_timesteps == self.step:
            state.request_stop()
