"""Environments that are split over processes: the split changes no result, and the process that fails is named."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs import factory
from rl_training.envs.factory import divide_into_groups, make_env, make_vector_env
from rl_training.envs.vector import worker_channel
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.envs.vector.worker_channel import Channel
from rl_training.errors import EnvironmentFault
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls


def settings(env_id: str, num_envs: int, **fields: Any) -> PPOConfig:
    return PPOConfig(env_id=env_id, total_timesteps=1, num_envs=num_envs, batch_size=num_envs, **fields)


def split(env_id: str, *bounds: int) -> MaskedVectorEnv:
    """Groups from 0 to the first bound, from there to the next, and so on, whatever CPUs there are."""
    config = settings(env_id, bounds[-1])
    ranges = [range(first, end) for first, end in zip((0, *bounds), bounds, strict=False)]
    return MaskedVectorEnv(config, ranges, partial(make_env, config))


def test_each_cpu_has_a_share_and_the_larger_ones_come_first() -> None:
    assert divide_into_groups("sync", 5, 2) == [range(5)]
    assert divide_into_groups("async", 2, 8) == [range(0), range(1), range(1, 2)]
    assert divide_into_groups("split", 8, 2) == [range(4), range(4, 8)]
    assert divide_into_groups("split", 5, 2) == [range(3), range(3, 5)]
    assert divide_into_groups("split", 8, 3) == [range(3), range(3, 6), range(6, 8)]
    assert divide_into_groups("split", 2, 64) == [range(1), range(1, 2)]


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 1), ("20000 100000", 1), ("", 8)]
)
def test_the_quota_of_a_container_counts(
    quota: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(factory.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(factory, "_CPU_QUOTA", tmp_path / "cpu.max")
    assert factory.usable_cpus() == cpus
    monkeypatch.setattr(factory, "_CPU_QUOTA", tmp_path / "none")
    assert factory.usable_cpus() == 8


def test_with_one_cpu_it_is_as_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "usable_cpus", lambda: 1)
    before = psutil.Process().children()
    envs = make_vector_env(settings("CartPole-v1", 4, vectorization="split"))
    assert psutil.Process().children() == before
    envs.close()


def parts(value: Any) -> list[bytes]:
    """Every array in an observation, by its bytes."""
    if isinstance(value, dict):
        return [part for key in sorted(value) for part in parts(value[key])]
    return [np.asarray(value).tobytes()]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "case_envs:DictObs-v0", "case_envs:MultiDiscAct-v0"])
def test_shares_change_nothing_and_a_snapshot_fits_any_of_them(env_id: str) -> None:
    """Five environments in one process and in two, then each from where the other was."""
    pair = [split(env_id, 5), split(env_id, 3, 5)]
    try:
        actions = pair[0].action_space
        actions.seed(7)
        began = [parts(envs.reset(seed=3)[0]) for envs in pair]
        assert began[0] == began[1]
        ends = 0
        for turn in range(2):
            for _ in range(40):
                action = actions.sample()
                one, other = (envs.step(action) for envs in pair)
                assert parts(one[0]) == parts(other[0])
                assert [a.tobytes() for a in one[1:4]] == [a.tobytes() for a in other[1:4]]
                done = one[2] | one[3]
                ends += int(done.sum())
                one, other = (envs.reset(options={"reset_mask": done}) for envs in pair)
                assert parts(one[0]) == parts(other[0])
            saved = [envs.snapshots() for envs in pair]
            assert [envs.restore(taken)[1] for envs, taken in zip(pair, reversed(saved), strict=True)] == [[], []], turn
        assert ends > 0 or env_id == "Pendulum-v1"
    finally:
        for envs in pair:
            envs.close()


def test_a_run_that_resumes_with_another_number_of_cpus_equals_the_uninterrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    config = PPOConfig.model_validate(
        {
            "env_id": "CartPole-v1",
            "num_envs": 3,
            "rollout_steps": 32,
            "batch_size": 16,
            "epochs": 2,
            "total_timesteps": 288,
            "normalization": {"observation": True, "reward": True},
            "evaluation": {"every": 10_000, "episodes": 2},
        }
    )
    manager = DefaultExperimentManager()

    def sha(result: TrainResult) -> str:
        assert result.checkpoint is not None
        return open_checkpoint(result.checkpoint).policy_sha256

    expected = sha(manager.setup(config).train())
    monkeypatch.setattr(factory, "usable_cpus", lambda: 2)
    parted = config.model_copy(update={"vectorization": "split"})
    stopped = manager.setup(parted, stop=StopAfterPolls(90)).train()
    assert stopped.stop_reason == "signal"
    monkeypatch.setattr(factory, "usable_cpus", lambda: 3)
    assert sha(manager.resume(stopped.run_dir, vectorization="sync").train()) == expected  # in a fork
    assert sha(manager.resume(stopped.run_dir).train()) == expected


@pytest.fixture(scope="module")
def picky() -> Iterator[MaskedVectorEnv]:
    """Environments 0 and 1 here, 2 and 3 in a worker; an action of 2 is refused, and -1 is rewarded."""
    envs = split("case_envs:OffsetAct-v0", 2, 4)
    envs.reset(seed=0)
    yield envs
    envs.close()


@pytest.mark.parametrize(("actions", "index"), [([0, 0, 0, 2], 3), ([0, 2, 0, 0], 1), ([0, 2, 2, 0], 1)])
def test_a_fault_is_that_of_the_first_and_leaves_no_answer_behind(
    actions: list[int], index: int, picky: MaskedVectorEnv
) -> None:
    with pytest.raises(EnvironmentFault, match=rf"\(index {index}\) at its step \d+: step raised ValueError: illegal"):
        picky.step(np.array(actions))
    # Each of these is answered by what was asked: a step by its own rewards, a call by its own values.
    assert picky.step(np.array([-1, 0, 0, -1]))[1].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert picky.step(np.array([0, 0, -1, 0]))[1].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert len(picky.call("snapshot")) == 4


def test_a_worker_that_was_killed_is_named_by_the_first_of_its_environments() -> None:
    envs = split("CartPole-v1", 2, 4)
    try:
        envs.reset(seed=0)
        envs.step(np.zeros(4, np.int64))
        os.kill(envs._workers[0].process.pid, signal.SIGKILL)
        for _ in range(2):  # it stays as dead as it is
            with pytest.raises(EnvironmentFault, match=r"\(index 2\) at its step \d: its worker process was killed by"):
                envs.step(np.zeros(4, np.int64))
    finally:
        envs.close()


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def shared_memory() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:rl_training" in line]


def test_nothing_is_left_after_close_and_a_worker_that_waits_takes_no_cpu() -> None:
    gc.collect()
    files, memory = open_files(), shared_memory()
    envs = split("CartPole-v1", 2, 4)
    envs.reset(seed=0)
    assert len(shared_memory()) == len(memory) + 1
    worker = psutil.Process(envs._workers[0].process.pid)
    before = sum(worker.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(worker.cpu_times()[:2]) - before <= 0.05
    envs.close()
    assert not worker.is_running()
    del envs
    gc.collect()
    assert shared_memory() == memory
    assert open_files() == files


def ends_of_a_line(*, spins: bool) -> tuple[Channel, Channel]:
    (a, b), (c, d) = os.pipe(), os.pipe()
    return Channel(a, d, spins=spins), Channel(c, b, spins=spins)


@pytest.mark.parametrize("spins", [False, True])
def test_a_line_brings_bells_messages_and_the_end_in_order(spins: bool) -> None:
    here, there = ends_of_a_line(spins=spins)
    with pytest.raises(TimeoutError, match=r"gave no answer within 0\.01 s"):
        here.receive(0.01)
    there.ring(b"x")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        there.send(lambda: 0)  # which sends nothing
    there.send({"a": np.arange(3)})
    assert here.receive() == b"x"
    assert here.receive()["a"].tolist() == [0, 1, 2]
    threading.Timer(4 * worker_channel.SPIN_SECONDS, there.ring, [b"y"]).start()
    assert here.receive() == b"y"  # asleep by then
    there.close()
    here.wait_for_end()
    with pytest.raises(EOFError):
        here.receive()
    with pytest.raises(BrokenPipeError):
        here.ring(b"x")
    here.close()
