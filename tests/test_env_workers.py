"""Worker processes of environments: they answer, they end, and none is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import LIMIT

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_vector_env
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.envs.vector.worker_channel import STEP
from rl_training.errors import EnvironmentRefused

PARENT = """
import sys, time
import numpy as np
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs import factory
factory.usable_cpus = lambda: 2
envs = factory.make_vector_env(PPOConfig(
    env_id=sys.argv[1], total_timesteps=1, num_envs=2, rollout_steps=128, vectorization=(*sys.argv, "async")[2]))
envs.reset(seed=1)
print("ready", flush=True)
while True:
    envs.step(np.zeros(2, np.int64))
"""


def settings(env_id: str, **fields: Any) -> PPOConfig:
    return PPOConfig(env_id=env_id, total_timesteps=1, num_envs=2, rollout_steps=128, vectorization="async", **fields)


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive if process.is_running())


def workers_of(envs: MaskedVectorEnv) -> list[psutil.Process]:
    """The processes of these environments. This process may have other children, such as a server of other tests."""
    return [psutil.Process(worker.process.pid) for worker in envs._workers]


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_nothing_is_left_after_close_not_even_the_simulator_of_an_env() -> None:
    before = set(descendants())
    envs = make_vector_env(settings("case_envs:SpawnsChild-v0"))
    envs.reset(seed=0)
    simulators = [psutil.Process(pid) for pid in envs.call("child_pid")]
    workers = [process for process in descendants() if process not in before]
    assert len(workers) == 4  # two workers and their simulators
    envs.close()
    assert [worker.process.returncode for worker in envs._workers] == [0, 0]  # they were not killed
    assert gone(workers + simulators, 0.0)


def test_workers_ignore_signals_and_keep_working() -> None:
    envs = make_vector_env(settings("case_envs:Plain-v0"))
    try:
        envs.reset(seed=0)
        workers = workers_of(envs)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            for worker in workers:
                worker.send_signal(number)
        time.sleep(0.2)
        assert envs.step(np.array([1, 1]))[1].tolist() == [1.0, 1.0]
    finally:
        envs.close()


@pytest.mark.parametrize(
    ("number", "env", "vectorization", "processes"),
    [
        (signal.SIGKILL, "SlowStep", "async", 2),
        pytest.param(signal.SIGTERM, "SlowStep", "async", 2, marks=pytest.mark.slow),
        (signal.SIGKILL, "SpawnsChild", "async", 4),
        pytest.param(signal.SIGKILL, "SlowStep", "split", 1, marks=pytest.mark.slow),
    ],
)
def test_workers_end_when_their_parent_is_gone(
    number: signal.Signals, env: str, vectorization: str, processes: int
) -> None:
    words = [f"case_envs:{env}-v0", vectorization]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *words], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert len(workers) == processes
    parent.send_signal(number)
    parent.wait(LIMIT)
    # Nobody holds the parent's stdout: its end is seen at once.
    assert parent.stdout.read() == b""
    parent.stdout.close()
    assert gone(workers, LIMIT)


@pytest.mark.slow
def test_workers_end_with_their_parent_in_the_middle_of_a_step_that_hangs() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "case_envs:HangsInStep-v0"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    workers = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait(LIMIT)
    parent.stdout.close()
    assert gone(workers, LIMIT)


def test_close_kills_a_worker_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.vector.masked_vector_env.CLOSE_SECONDS", 0.0)
    envs = make_vector_env(settings("case_envs:HangsInStep-v0"))
    envs.reset(seed=0)
    workers = workers_of(envs)
    envs._workers[0].ring(STEP)
    envs.close()
    assert envs._workers[0].process.returncode == -signal.SIGKILL
    assert gone(workers, 0.0)


def test_the_output_of_an_env_does_not_mix_with_the_parents() -> None:
    script = PARENT.replace("while True:", "for _ in range(3):") + "envs.close()\nprint('done')\n"
    ended = subprocess.run(
        [sys.executable, "-c", script, "case_envs:Talks-v0"], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "ready\ndone\n"
    assert ended.stderr == ""


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARENT.replace("while True:", "for _ in range(3):") + "envs.close()\nprint('done')\n")
    ended = subprocess.run(
        [sys.executable, str(script), "case_envs:Plain-v0"], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "ready\ndone\n"


def test_an_env_that_only_this_process_knows_is_refused_by_its_worker() -> None:
    import trialplug  # noqa: F401 - registers the id here, and only here

    with pytest.raises(EnvironmentRefused, match="unknown namespace 'trialplug'; its module must be named"):
        make_vector_env(settings("trialplug/Walk-v0"))


def test_a_secret_is_resolved_in_the_worker_or_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    kwargs = {"api_token": "${env:CASE_TOKEN}"}
    with pytest.raises(EnvironmentRefused, match="environment variable CASE_TOKEN is not set"):
        make_vector_env(settings("case_envs:NeedsToken-v0", env_kwargs=kwargs))
    monkeypatch.setenv("CASE_TOKEN", "let me in")
    envs = make_vector_env(settings("case_envs:NeedsToken-v0", env_kwargs=kwargs))
    try:
        assert envs.call("api_token") == ("let me in", "let me in")
    finally:
        envs.close()


def test_attributes_and_methods_reach_the_envs() -> None:
    envs = make_vector_env(settings("case_envs:Plain-v0"))
    try:
        envs.reset(seed=[1, 2])
        envs.set_attr("length", [3, 4])
        assert envs.call("length") == (3, 4)
        assert [frame.shape for frame in envs.call("render")] == [(16, 16, 3)] * 2
        for _ in range(3):
            terminated = envs.step(np.array([0, 0]))[2]
        assert terminated.tolist() == [True, False]
    finally:
        envs.close()


def test_workers_hold_no_end_of_a_siblings_pipes() -> None:
    envs = make_vector_env(settings("case_envs:Plain-v0"))
    try:
        envs.reset(seed=0)
        one, other = ({link for link in links_of(worker) if link.startswith("pipe:")} for worker in workers_of(envs))
        assert (len(one), len(other), one & other) == (3, 3, set())  # requests, answers, what it says to stderr
    finally:
        envs.close()


def links_of(process: psutil.Process) -> list[str]:
    return [str(descriptor.readlink()) for descriptor in Path(f"/proc/{process.pid}/fd").iterdir()]
