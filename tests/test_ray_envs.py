"""Environments that are stepped by Ray actors: the numbers are those of `sync`, also after an actor has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import LIMIT, wait_for

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_vector_env
from rl_training.envs.spaces.action_mask import draw_allowed
from rl_training.envs.vector.ray_worker import RayWorker
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.run_layout import METRICS
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.runtime.inexact_resumes import explain_resume
from rl_training.system import ray_cluster
from rl_training.system.ray_cluster import connect_to_ray, leave_ray
from rl_training.tracking.metric_log import MetricLog

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

SMALL = {
    "network": {"hidden": [8]},
    "seed": 3,
    "evaluation": {"every": 128, "episodes": 1},
    "logging": {"every": 64},
}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {
        "env_id": "CartPole-v1",
        "num_envs": 4,
        "rollout_steps": 32,
        "batch_size": 64,
        "epochs": 2,
        "total_timesteps": 384,
        "normalization": {"observation": True, "reward": True},
        **SMALL,
    },
    "dqn": {
        "env_id": "case_envs:DictObs-v0",
        "num_envs": 2,
        "learning_starts": 32,
        "batch_size": 16,
        "buffer_size": 256,
        "total_timesteps": 192,
        **SMALL,
    },
}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """A cluster with two CPUs, which the tests share, because starting one takes seconds."""
    ray = connect_to_ray("these tests", 2)
    yield
    leave_ray(ray)


def settings(env_id: str, **fields: Any) -> PPOConfig:
    fields = {"num_envs": 4, "vectorization": "ray", "rollout_steps": 128, **fields}
    return PPOConfig.model_validate({"env_id": env_id, "total_timesteps": 1, **fields})


def kill_actor(envs: Any, number: int) -> None:
    from ray._private.state import actors

    worker = envs._workers[number]
    assert isinstance(worker, RayWorker)
    worker._ray.get(worker._actor.answer.remote("snapshot", []))  # it has started
    os.kill(actors(worker._actor._actor_id.hex())["Pid"], signal.SIGKILL)


def parts(value: Any) -> list[bytes]:
    """Every array in an observation or snapshot, by its bytes."""
    if isinstance(value, dict):
        return [part for key in sorted(value) for part in parts(value[key])]
    if isinstance(value, list | tuple):
        return [part for item in value for part in parts(item)]
    return [np.asarray(value).tobytes() if not isinstance(value, str) else value.encode()]


def test_actors_give_the_masks_of_infos() -> None:
    pair = [
        make_vector_env(settings("case_envs:StrictCut-v0", num_envs=5, vectorization=kind, action_mask="info"))
        for kind in ("sync", "ray")
    ]
    rng = np.random.default_rng(0)
    try:
        observations = [envs.reset(seed=3)[0] for envs in pair]
        for _ in range(25):
            assert parts(observations[0]) == parts(observations[1])
            action = 5 + draw_allowed(observations[0]["action_mask"] == 1, rng)
            steps = [envs.step(action) for envs in pair]
            assert [parts(value) for value in steps[0][:4]] == [parts(value) for value in steps[1][:4]]
            done = {"reset_mask": steps[0][2] | steps[0][3]}
            observations = [envs.reset(options=dict(done))[0] for envs in pair]
    finally:
        for envs in pair:
            envs.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "case_envs:DictObs-v0"])
def test_a_killed_actor_changes_no_observation_reward_or_snapshot(env_id: str) -> None:
    pair = [make_vector_env(settings(env_id, num_envs=5, vectorization=kind)) for kind in ("sync", "ray")]
    try:
        assert [worker.indices for worker in pair[1]._workers] == [range(3), range(3, 5)]
        actions = pair[0].action_space
        actions.seed(7)
        began = [parts(envs.reset(seed=3)[0]) for envs in pair]
        assert began[0] == began[1]
        for step in range(60):
            action = actions.sample()
            if step in (25, 26, 50):
                kill_actor(pair[1], step % 2)
            one, other = (envs.step(action) for envs in pair)
            assert [parts(value) for value in one[:4]] == [parts(value) for value in other[:4]], step
            done = one[2] | one[3]
            if step == 40:
                done[:] = True
                kill_actor(pair[1], 1)  # while it begins episodes
            one, other = (envs.reset(options={"reset_mask": done}) for envs in pair)
            assert parts(one[0]) == parts(other[0])
        kill_actor(pair[1], 0)
        saved = [envs.snapshots() for envs in pair]
        assert parts(saved[0]) == parts(saved[1])
        assert pair[1].lost_episodes == []
        assert [envs.restore(taken)[1] for envs, taken in zip(pair, reversed(saved), strict=True)] == [[], []]
    finally:
        for envs in pair:
            envs.close()


class KillsActors(Callback):
    """Kills an actor of the trainer's environments at two steps."""

    trainer: Any

    def on_step(self, state: TrainerState) -> None:
        if state.num_timesteps in (64, 152):
            kill_actor(self.trainer.envs._envs, state.num_timesteps % 3 % 2)


def train(algo: str, vectorization: str, *callbacks: KillsActors) -> tuple[str, list[Any]]:
    """Trains; returns the hash of the policy, and the metrics that no clock measures."""
    config = config_from_mapping({"algo": algo, **RUNS[algo], "vectorization": vectorization})
    trainer = DefaultExperimentManager().setup(config, callbacks)
    for callback in callbacks:
        callback.trainer = trainer
    log = MetricLog(trainer.run.run_dir)
    trainer.callbacks.append(log)
    checkpoint = trainer.train().checkpoint
    log.close()
    assert checkpoint is not None
    assert trainer.inexact == []
    lines = map(json.loads, (trainer.run.run_dir / METRICS).read_text().splitlines())
    metrics = [
        (line["step"], {name: value for name, value in line["metrics"].items() if not name.startswith("time/")})
        for line in lines
    ]
    return open_checkpoint(checkpoint).policy_sha256, metrics


@pytest.mark.parametrize("algo", RUNS)
def test_a_run_whose_actors_are_killed_has_the_policy_and_metrics_of_sync(algo: str) -> None:
    policy, metrics = train(algo, "ray", KillsActors())
    assert (policy, metrics) == train(algo, "sync")
    assert len(metrics) >= 3


def test_an_episode_that_cant_be_played_again_is_cut_and_the_run_is_inexact() -> None:
    envs = make_vector_env(settings("case_envs:NotDeterministic-v0", num_envs=2))
    try:
        envs.reset(seed=0)
        before = envs.step(np.ones(2, np.int64))[0]
        kill_actor(envs, 1)
        observation, reward, terminated, truncated, _ = envs.step(np.ones(2, np.int64))
        assert (reward.tolist(), terminated.tolist(), truncated.tolist()) == ([1.0, 0.0], [False, False], [False, True])
        assert observation[1].tolist() == before[1].tolist()
        assert envs.lost_episodes == [1]
        envs.reset(options={"reset_mask": truncated})
        assert envs.step(np.ones(2, np.int64))[3].tolist() == [False, False]
        assert [snapshot["episode_length"] for snapshot in envs.snapshots()] == [3, 1]
        assert [snapshot["life_steps"] for snapshot in envs.snapshots()] == [3, 3]
    finally:
        envs.close()
    entry = {"num_timesteps": 8, "fresh_episodes": [], "changed": [], "environments": ["lost episode: 1"]}
    assert explain_resume(entry) == (
        "at step 8: the episodes of environments 1 were lost with their Ray actor and cut, because the environment is "
        "not deterministic"
    )


def fault(vectorization: str, env_id: str, **kwargs: Any) -> tuple[str, str]:
    envs = make_vector_env(settings(env_id, num_envs=2, vectorization=vectorization, env_kwargs=kwargs))
    try:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(np.ones(2, np.int64))
        with pytest.raises(EnvironmentFault) as caught:
            envs.step(np.ones(2, np.int64))
        return str(caught.value), str(caught.value.__cause__)
    finally:
        envs.close()


def test_an_error_of_an_environment_is_that_of_a_worker_process() -> None:
    message, cause = fault("ray", "case_envs:RaisesLate-v0", at=3)
    expected, expected_cause = fault("async", "case_envs:RaisesLate-v0", at=3)
    assert message == expected
    assert "(index 0) at its step 3: step raised RuntimeError" in message
    assert cause.splitlines()[-1] == expected_cause.splitlines()[-1]


def test_an_environment_that_ends_every_actor_is_a_fault() -> None:
    message, _ = fault("ray", "case_envs:DiesLate-v0", at=3)
    assert "(index 0) at its step 3: its Ray actor died 4 times in the same step or call" in message


def test_attributes_methods_and_secrets_reach_the_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASE_TOKEN", "let me in")  # which the cluster, started before, does not have
    kwargs = {"api_token": "${env:CASE_TOKEN}"}
    envs = make_vector_env(settings("case_envs:NeedsToken-v0", num_envs=2, env_kwargs=kwargs))
    try:
        envs.reset(seed=[1, 2])
        assert envs.call("api_token") == ("let me in", "let me in")
        envs.set_attr("length", [3, 4])
        kill_actor(envs, 0)
        assert envs.call("length") == (3, 4)
        assert [frame.shape for frame in envs.call("render")] == [(16, 16, 3)] * 2
        envs.collect_infos = True
        for _ in range(3):
            terminated = envs.step(np.array([0, 0]))[2]
        assert terminated.tolist() == [True, False]
        assert len(envs.infos) == 2
    finally:
        envs.close()


def test_an_id_that_only_this_process_knows_is_refused() -> None:
    import trialplug  # noqa: F401 - registers the id here, and only here

    with pytest.raises(EnvironmentRefused, match="unknown namespace 'trialplug'; its module must be named"):
        make_vector_env(settings("trialplug/Walk-v0", num_envs=2))


def test_no_module_is_imported_from_an_excluded_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.security import import_guard

    (tmp_path / "planted.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_guard, "_excluded", {str(tmp_path): None})
    with pytest.raises(EnvironmentRefused, match="planted is not imported from"):
        make_vector_env(settings("planted:Walk-v0", num_envs=1))


COMMAND = [
    *("train", "--env", "case_envs:SlowReset-v0", "--timesteps", "100000", "--no-track", "--json"),
    *("--set", "vectorization=ray", "--set", "num_envs=2", "--set", "checkpoint.every=64", "--set", "rollout_steps=32"),
]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_terminal_saves_the_run_and_ends_ray(number: signal.Signals, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short:  # a socket in it has a limit of 107 characters
        _stop_command(number, tmp_path, Path(short))


def _stop_command(number: signal.Signals, tmp_path: Path, temporary: Path) -> None:
    environment = {**os.environ, "RL_TRAINING_HOME": str(tmp_path), "RAY_TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-m", "rl_training", *COMMAND],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        wait_for(lambda: any(tmp_path.glob("runs/*/checkpoints/step_*[1-9]*")))  # later than the first one
        started = psutil.Process(command.pid).children(recursive=True)
        assert len(started) >= 3  # the cluster and two actors
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o077 == 0  # Ray lets every user write to the folders that it makes in it
        os.killpg(command.pid, number)
        out, err = command.communicate(timeout=LIMIT)
    assert command.returncode == 75, err
    assert json.loads(out)["stop_reason"] == "signal"
    assert "ray" not in err.lower().replace("vectorization: ray", "").replace("test_ray", ""), err
    _, alive = psutil.wait_procs(started, timeout=LIMIT)
    assert alive == []
    assert list(temporary.iterdir()) == []


def test_a_cluster_that_is_started_here_listens_on_loopback_alone() -> None:
    head = ray_cluster._connection.head
    assert head is not None
    processes = [psutil.Process(), *psutil.Process(head.pid).children(recursive=True)]
    listening = [
        address.laddr.ip
        for process in processes
        for address in process.net_connections("inet")
        if address.status == psutil.CONN_LISTEN
    ]
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
