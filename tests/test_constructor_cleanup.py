"""A constructor that fails at any of its lines leaves no process, thread or open file behind."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import psutil
import pytest
from waiting import wait_for

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.settings import TrainConfig
from rl_training.envs.factory import make_vector_env
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.envs.vector.step_rows import open_shared_file
from rl_training.envs.vector.worker_process import WorkerProcess
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer
from rl_training.services.embedded_server import EmbeddedServer
from rl_training.tracking.session import TrackingSession
from rl_training.tracking.shipping.shipper_process import ShipperProcess
from tests.trainings import OFF, PPO


class Injected(Exception):
    """Raised where a line of a constructor is about to run."""


def code_of(kind: type) -> CodeType:
    init: Any = inspect.unwrap(kind.__init__)  # type: ignore[misc]
    code: CodeType = init.__code__
    return code


def lines_of(codes: set[CodeType], make: Callable[[], Any], fail_at: int | None) -> int:
    """Calls `make` and fails at the line number `fail_at` (from 0) of these codes; returns how many there were."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        return trace_line if frame.f_code in codes else None

    def trace_line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count - 1 == fail_at:
                raise Injected
        return trace_line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        make()
    finally:
        sys.settrace(before)
    return count


def held() -> tuple[set[int], set[int | None], set[str]]:
    """Returns child processes, threads, and open files."""
    gc.collect()
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    threads = {thread.ident for thread in threading.enumerate()}
    return children, threads, set(os.listdir("/proc/self/fd"))  # noqa: PTH208


def more_than(before: Any) -> list[Any]:
    return [one for now, then in zip(held(), before, strict=True) for one in now - then]


def require_nothing_left(before: Any) -> None:
    wait_for(lambda: not more_than(before))  # a thread may be on its way out


def trainer_of(config: TrainConfig) -> None:
    trainer = get_algorithm(config.algo).make_trainer(config)
    trainer.discard()


def session_in(folder: Path) -> None:
    (folder / "run").mkdir(exist_ok=True)
    description = {"run_uid": "0", "total_timesteps": 1}
    session = TrackingSession(folder / "run", description, f"sqlite:///{folder}/mlflow.db")
    session._opened.close()


def server_in(folder: Path) -> None:
    EmbeddedServer()._opened.close()


def worker_in(folder: Path) -> None:
    with open_shared_file() as memory:
        WorkerProcess(range(1), memory, spins=False)._opened.close()


WITH_A_CHILD: dict[str, Any] = {"env_id": "case_envs:SpawnsChild-v0", "num_envs": 1}
"""An environment that has a process, which its `close` ends."""
ON_POLICY = PPOConfig(**{**PPO, **WITH_A_CHILD, "batch_size": 16})
OFF_POLICY = DQNConfig(**{**OFF, **WITH_A_CHILD})
CASES: dict[str, tuple[tuple[type, ...], Callable[[Path], None]]] = {
    "on-policy trainer": ((Trainer, PPOTrainer), lambda folder: trainer_of(ON_POLICY)),
    "off-policy trainer": ((OffPolicyTrainer,), lambda folder: trainer_of(OFF_POLICY)),
    "training environments": ((TrainingEnvs,), lambda folder: TrainingEnvs(ON_POLICY, gamma=0.9).close()),
    "vector environment": ((MaskedVectorEnv,), lambda folder: make_vector_env(ON_POLICY).close()),
    "worker process": ((WorkerProcess,), worker_in),
    "tracking": ((TrackingSession, ShipperProcess), session_in),
    "Prefect server": ((EmbeddedServer,), server_in),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failure_at_any_line_leaves_nothing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, make = CASES[case]
    codes = {code_of(kind) for kind in kinds}
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    make(tmp_path)  # what is imported or opened once for all
    before = held()
    gc.freeze()  # what all modules hold need not be looked through again at each line
    count = lines_of(codes, lambda: make(tmp_path), None)
    require_nothing_left(before)
    assert count > 3
    for line in range(count):
        with pytest.raises(Injected):
            lines_of(codes, lambda: make(tmp_path), line)
        require_nothing_left(before)
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_trainer_without_its_device_leaves_no_process(algo: str) -> None:
    config = config_from_mapping({**WITH_A_CHILD, "algo": algo, "device": "cuda:63", "total_timesteps": 2000})
    before = held()
    with pytest.raises(ConfigError, match="device"):
        get_algorithm(config.algo).make_trainer(config)
    require_nothing_left(before)
