"""PPO in two processes: equal to one, stopped and resumed with the same bits, and ended by the death of a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rl_training
from rl_training import train_ppo
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import RankFailed, UserError
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.metadata import read_metadata
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import find_checkpoint, load_policy_state, load_trainer_state
from tests.waiting import LIMIT, wait_for

pytestmark = pytest.mark.slow

TRAIN = """import json, sys
from rl_training import train_ppo
from rl_training.experiment.loading import config_from_mapping
train_ppo(config_from_mapping(json.loads(sys.argv[1])))"""
NORMALIZED = {"normalization": {"observation": True, "reward": True}}


def make_config(ranks: int = 2, **changed: Any) -> PPOConfig:
    """Ten rollouts, each of which is collected by two orders."""
    config = config_from_mapping({
        "algo": "ppo", "env_id": "CartPole-v1", "ranks": ranks, "num_envs": 4, "rollout_steps": 96, "batch_size": 64,
        "total_timesteps": 3_840, "seed": 3, "network": {"hidden": [16]}, "logging": {"every": 384},
        "evaluation": {"every": 100_000, "episodes": 2, "final_episodes": 2, "video": False},
        "checkpoint": {"every": 100_000}, **changed,
    })  # fmt: skip
    assert isinstance(config, PPOConfig)
    return config


class At(Callback):
    """Does something once, after the first rollout that ends at a step or later."""

    def __init__(self, step: int, act: Callable[[TrainerState], object]) -> None:
        self._step, self._act, self._done = step, act, False

    def on_collect_end(self, state: TrainerState) -> None:
        if state.num_timesteps >= self._step and not self._done:
            self._done = True
            self._act(state)


def followers(pid: int | None = None) -> list[psutil.Process]:
    """The processes of the other ranks that a process has started."""
    children = psutil.Process(pid).children()
    return [child for child in children if "rl_training.runtime.ranks.follower" in " ".join(child.cmdline())]


def weights(run_dir: Path) -> torch.Tensor:
    state = load_policy_state(find_checkpoint(run_dir))["weights"]
    return torch.cat([state[name].flatten() for name in sorted(state)])


def relative_difference(one: Path, other: Path) -> float:
    return float((weights(one) - weights(other)).norm() / weights(one).norm())


@pytest.mark.parametrize(
    "changed",
    [{}, NORMALIZED, {"env_id": "Pendulum-v1", "max_episode_steps": 50}],
    ids=["CartPole", "normalized", "Pendulum"],
)
def test_ten_updates_on_two_ranks_equal_those_of_one_to_1e_4(changed: dict[str, Any]) -> None:
    one, two = (train_ppo(make_config(ranks, **changed)) for ranks in (1, 2))
    assert relative_difference(one.run_dir, two.run_dir) < 1e-4
    assert two.num_timesteps == 3_840
    for name in one.metrics.keys() - {"train/clip_fraction"}:
        if not name.startswith("time/"):
            assert two.metrics[name] == pytest.approx(one.metrics[name], rel=2e-3, abs=1e-4), name
    counted = [load_trainer_state(find_checkpoint(run.run_dir))["progress"] for run in (one, two)]
    assert counted[0]["episodes"] == counted[1]["episodes"] > 0
    assert counted[0]["recent_lengths"] == counted[1]["recent_lengths"]
    assert followers() == []


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return find_checkpoint(train_ppo(make_config(**NORMALIZED)).run_dir).policy_sha256


def test_a_stopped_run_resumes_to_the_same_bits(undisturbed: str) -> None:
    config = make_config(**NORMALIZED)
    stopped = train_ppo(config, [At(1_200, TrainerState.request_stop)])
    assert (stopped.stop_reason, stopped.num_timesteps) == ("callback", 1_536)
    resumed = train_ppo(config, resume_from=stopped.run_dir)
    assert (resumed.run_dir, resumed.stop_reason, resumed.num_timesteps) == (stopped.run_dir, "completed", 3_840)
    assert find_checkpoint(resumed.run_dir).policy_sha256 == undisturbed


def test_a_checkpoint_in_the_middle_of_a_rollout_resumes_to_the_same_bits(undisturbed: str) -> None:
    # An order ends 64 steps of 4 environments after the third rollout.
    config = make_config(**NORMALIZED, checkpoint={"every": 1_152 + 4 * 64, "keep_last": 9})
    run = train_ppo(config)
    early = run.run_dir / "checkpoints" / "step_000000001408"
    assert load_trainer_state(find_checkpoint(early))["buffer"]["position"] == 64
    forked = train_ppo(config, resume_from=early)
    assert forked.run_dir != run.run_dir
    assert find_checkpoint(forked.run_dir).policy_sha256 == find_checkpoint(run.run_dir).policy_sha256 == undisturbed


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
def test_another_number_of_ranks_is_a_fork_that_continues_the_environments(before: int, after: int) -> None:
    middle = {"checkpoint": {"every": 1_408, "keep_last": 9}}  # in the middle of a rollout
    first = train_ppo(make_config(before, **middle))
    early = first.run_dir / "checkpoints" / "step_000000001408"
    forked = train_ppo(make_config(after, **middle), resume_from=early)
    assert forked.run_dir != first.run_dir
    assert relative_difference(first.run_dir, forked.run_dir) < 1e-4
    [entry] = read_metadata(forked.run_dir)["inexact"]
    assert entry["changed"] == [f"ranks: {before} -> {after}"]
    assert entry["fresh_episodes"] == []


def test_a_killed_rank_ends_the_run_which_resumes_to_the_same_bits(undisturbed: str) -> None:
    config = make_config(**NORMALIZED, checkpoint={"every": 500})
    found: list[Path] = []

    def kill(state: TrainerState) -> None:
        found.append(state.run_dir)
        for process in followers():
            process.kill()

    with pytest.raises(RankFailed, match=r"another of the 2 ranks has died .*; the run ends at its last checkpoint"):
        train_ppo(config, [At(1_200, kill)])
    checkpoint = find_checkpoint(found[0])
    assert 0 < checkpoint.num_timesteps < 1_536
    resumed = train_ppo(config, resume_from=found[0])
    assert resumed.num_timesteps == 3_840
    assert find_checkpoint(resumed.run_dir).policy_sha256 == undisturbed


def test_an_environment_that_fails_on_another_rank_is_named() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed: .*Elsewhere-v0.*the arm is stuck"):
        train_ppo(make_config(env_id="rank_envs:Elsewhere-v0", env_kwargs={"pid": os.getpid()}))
    assert followers() == []


def test_a_signal_to_any_rank_stops_all_at_the_same_step() -> None:
    def signal_rank(state: TrainerState) -> None:
        [process] = followers()
        assert {each.laddr.ip for each in process.net_connections() if each.laddr} == {"127.0.0.1"}
        process.send_signal(signal.SIGTERM)

    config = make_config(total_timesteps=4_000_000)
    stopped = train_ppo(config, [At(400, signal_rank)])
    assert "GLOO_SOCKET_IFNAME" not in os.environ  # by which the ranks are kept to loopback
    assert stopped.stop_reason == "signal"
    assert 400 < stopped.num_timesteps < 4_000_000
    shared = load_trainer_state(find_checkpoint(stopped.run_dir))["envs"]["snapshots"]
    assert len({snapshot["life_steps"] for snapshot in shared}) == 1


def test_the_other_ranks_end_when_rank_0_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = make_config(total_timesteps=4_000_000, run_dir=str(path)).model_dump_json()
    (folder := tmp_path / "temporary").mkdir()
    variables = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", TRAIN, settings], env=variables)
    try:
        wait_for((path / "checkpoints").is_dir)
        [follower] = followers(process.pid)
        process.kill()
        process.wait()
        assert psutil.wait_procs([follower], LIMIT)[1] == []
        assert list(folder.glob("rl-training-ranks-*")) == []
    finally:
        process.kill()
        process.wait()


def test_a_callback_that_needs_each_step_is_refused() -> None:
    class Counts(Callback):
        def on_step(self, state: TrainerState) -> None:
            raise AssertionError

    with pytest.raises(UserError, match="on_step and ranks: 2"):
        train_ppo(make_config(), [Counts()])


def test_a_fine_tuned_run_begins_with_the_weights_on_all_ranks() -> None:
    first = train_ppo(make_config(total_timesteps=768))
    tuned = rl_training.resume(
        first.run_dir, fine_tune=True, track=False, total_timesteps=384, learning_rate=1e-12, progress=False
    )
    assert tuned.run_dir != first.run_dir
    assert relative_difference(first.run_dir, tuned.run_dir) < 1e-6


def torchrun(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("torchrun")
    (tmp_path / "settings.yaml").write_text(json.dumps(make_config(1, total_timesteps=768).model_dump(mode="json")))
    command = [str(program), "--nproc-per-node", "2", "--module", "rl_training", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT)


def test_torchrun_starts_the_ranks_of_a_command(tmp_path: Path) -> None:
    own = train_ppo(make_config(total_timesteps=768))
    options = ["--no-track", "--json", "--set", f"run_dir={tmp_path / 'run'}"]
    ended = torchrun(tmp_path, "train", "--config", "settings.yaml", "--set", "ranks=2", *options)
    assert ended.returncode == 0, ended.stderr
    [line] = ended.stdout.splitlines()  # of rank 0 alone
    assert json.loads(line)["num_timesteps"] == 768
    assert find_checkpoint(tmp_path / "run").policy_sha256 == find_checkpoint(own.run_dir).policy_sha256
    resumed = torchrun(
        tmp_path, "resume", str(tmp_path / "run"), "--no-track", "--json", "--set", "total_timesteps=1536"
    )
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["num_timesteps"] == 1_536


def test_torchrun_with_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "train", "--config", "settings.yaml", "--no-track")
    assert ended.returncode == 1
    assert "ranks: got 1, and torchrun has started 2 processes (WORLD_SIZE)" in ended.stderr
