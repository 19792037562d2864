"""Off-policy runs that are stopped anywhere and resumed equal the uninterrupted run, replay buffer included."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.errors import CheckpointError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import load_trainer_state, manifest, open_checkpoint
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer
from tests.off_policy_runs import Events, StopsAt, dqn, sac, td3, tqc
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "learning_starts": 60,
    "total_timesteps": 200,
    "buffer_size": 120,
    "batch_size": 16,
    "train_freq": 8,
    "gradient_steps": 5,
    "n_step": 3,
    "learning_rate_schedule": "linear",
    "network": {"hidden": [16]},
    "normalization": {"observation": True, "reward": True},
    "logging": {"every": 20},
    "evaluation": {"every": 70, "episodes": 2, "num_envs": 2},
}
STACKS: dict[str, Any] = {
    "wrappers": [{"name": "FrameStackObservation", "kwargs": {"stack_size": 4}}],
    "normalization": {"reward": True},
}
AHEAD: dict[str, Any] = {**SMALL, "batch_size": 48, "gradient_steps": 20, "network": {"hidden": [16, 16]}}
"""Blocks of updates whose target values are computed in products of 240 rows, five batches each."""
GOALS: dict[str, Any] = {**SMALL, "n_step": 1}
CONFIGS = {
    "dqn": dqn("CartPole-v1", target_update_every=30, double=True, dueling=True, **SMALL),
    "sac": sac("Pendulum-v1", max_episode_steps=25, warmup_hold=7, **SMALL),
    "td3": td3("Pendulum-v1", max_episode_steps=25, policy_delay=3, **SMALL),
    "tqc": tqc("Pendulum-v1", max_episode_steps=25, critics=3, quantiles=5, **SMALL),
    "dqn with target values ahead": dqn("CartPole-v1", target_update_every=30, **AHEAD),
    "dqn with target values ahead in two threads": dqn("CartPole-v1", target_update_every=30, threads=2, **AHEAD),
    "dqn of quantiles": dqn("CartPole-v1", target_update_every=30, quantiles=7, double=True, dueling=True, **SMALL),
    "dqn of quantiles with targets ahead": dqn("CartPole-v1", target_update_every=30, quantiles=7, **AHEAD),
    "dqn by priority": dqn("CartPole-v1", target_update_every=30, prioritized_replay={}, double=True, **SMALL),
    "dqn of quantiles on frames by priority": dqn(
        "GreyImage", target_update_every=30, frame_channels=1, quantiles=5, prioritized_replay={}, **{**SMALL, **STACKS}
    ),
    "dqn with hindsight": dqn("ReachChoice", target_update_every=30, hindsight={}, double=True, **GOALS),
    "dqn with hindsight by priority": dqn(
        "ReachChoice", target_update_every=30, hindsight={}, prioritized_replay={}, **GOALS
    ),
    "dqn with hindsight and target values ahead": dqn(
        "ReachChoice", target_update_every=30, hindsight={}, **{**AHEAD, "n_step": 1}
    ),
    "sac with hindsight": sac("Reach", hindsight={}, **GOALS),
    "td3 with hindsight": td3("Reach", hindsight={}, **GOALS),
    "tqc with hindsight": tqc("Reach", hindsight={}, critics=3, quantiles=5, **GOALS),
    "dqn on images and numbers": dqn("DictObs", target_update_every=30, **SMALL),
    "dqn on frames": dqn("GreyImage", target_update_every=30, frame_channels=1, **{**SMALL, **STACKS}),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def sha(result: TrainResult) -> str:
    assert result.checkpoint is not None
    return open_checkpoint(result.checkpoint).policy_sha256


def phase_and_updates(result: TrainResult) -> tuple[str, int]:
    assert result.checkpoint is not None
    state = load_trainer_state(open_checkpoint(result.checkpoint))
    return state["progress"]["phase"], state["updates"]


@pytest.mark.parametrize(
    ("name", "vectorization", "stops"),
    [
        ("dqn", "sync", [1, 69, 105, 132, 150, 213, 258, 285]),
        ("sac", "sync", [1, 69, 105, 132, 150, 213, 258, 285]),
        ("td3", "sync", [1, 132, 149, 150, 151, 258]),
        ("td3", "split", [132]),
        ("tqc", "sync", [1, 132, 150, 258]),
        ("tqc", "split", [132]),
        pytest.param("tqc", "async", [132, 258], marks=pytest.mark.slow),
        pytest.param("td3", "async", [132, 258], marks=pytest.mark.slow),
        pytest.param("dqn", "async", [132, 258], marks=pytest.mark.slow),
        ("dqn", "split", [132]),
        ("dqn of quantiles", "sync", [67, 150, 285]),
        ("dqn by priority", "sync", [1, 67, 69, 132, 150, 213, 285]),
        ("dqn of quantiles on frames by priority", "sync", [67, 150]),
        ("dqn of quantiles with targets ahead", "sync", [149, 250]),
        ("dqn with hindsight", "sync", [1, 67, 69, 132, 150, 213, 285]),
        ("dqn with hindsight", "split", [152]),
        pytest.param("dqn with hindsight", "async", [152, 258], marks=pytest.mark.slow),
        ("dqn with hindsight by priority", "sync", [67, 150]),
        ("dqn with hindsight and target values ahead", "sync", [141, 149, 250]),
        ("sac with hindsight", "sync", [69, 152]),
        ("td3 with hindsight", "sync", [151]),
        ("tqc with hindsight", "split", [152]),
        ("dqn with target values ahead", "sync", [141, 149, 250]),
        ("dqn with target values ahead in two threads", "sync", [141, 149, 152, 250]),
        pytest.param("sac", "async", [132, 258], marks=pytest.mark.slow),
        pytest.param("dqn on images and numbers", "sync", [67, 118], marks=pytest.mark.slow),
        ("dqn on frames", "sync", [67, 118, 285]),
        pytest.param("dqn on frames", "async", [67], marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_anywhere_and_resumed_equals_the_uninterrupted_run(
    name: str, vectorization: str, stops: list[int]
) -> None:
    """The stops are counted in polls of the flag, of which there are two a step and one an update."""
    config, whole = CONFIGS[name], Events()
    expected = sha(MANAGER.setup(config, [whole]).train())
    moments = set()
    for polls in stops:
        points = Events()
        changed = config.model_copy(update={"vectorization": vectorization})
        stopped = MANAGER.setup(changed, [points], stop=StopAfterPolls(polls)).train()
        assert stopped.stop_reason == "signal"
        moments.add(phase_and_updates(stopped))
        resumed = MANAGER.resume(stopped.run_dir, [points]).train()
        assert (resumed.stop_reason, resumed.num_timesteps) == ("completed", 200)
        assert resumed.run_uid == stopped.run_uid
        assert sha(resumed) == expected, polls
        assert points.points == whole.points, polls
    assert any(phase == "update" and updates % config.gradient_steps for phase, updates in moments), moments


def test_two_threads_teach_the_very_same_as_one() -> None:
    name = "dqn with target values ahead"
    assert len({sha(MANAGER.setup(CONFIGS[each]).train()) for each in (name, f"{name} in two threads")}) == 1


def test_frames_that_are_stored_once_teach_the_very_same() -> None:
    sharing = CONFIGS["dqn on frames"]
    trainers = [run_of(MANAGER.setup(c)) for c in (sharing, sharing.model_copy(update={"frame_channels": None}))]
    shared, whole = (trainer.train() for trainer in trainers)
    assert sha(shared) == sha(whole)
    assert [type(trainer.buffer).__name__ for trainer in trainers] == ["FrameReplayBuffer", "ReplayBuffer"]
    assert trainers[0].buffer.terminated.any()
    assert trainers[0].buffer.truncated.any()


def run_of(trainer: Trainer) -> OffPolicyTrainer:
    assert isinstance(trainer, OffPolicyTrainer)
    return trainer


def test_epsilon_and_learning_rate_continue_where_they_were() -> None:
    """At 200 of 300 steps: the decay of epsilon was over at 150, and a third of the learning rate is left."""
    config = dqn(
        total_timesteps=300,
        learning_starts=40,
        train_freq=4,
        learning_rate=0.03,
        learning_rate_schedule="linear",
        logging={"every": 4},
    )
    events = StopsAt(200)
    stopped = MANAGER.setup(config, [events]).train()
    assert (stopped.stop_reason, stopped.num_timesteps) == ("callback", 200)
    resumed = MANAGER.resume(stopped.run_dir, [events]).train()
    assert resumed.num_timesteps == 300
    epsilon, rate = events.values("train/exploration_rate"), events.values("train/learning_rate")
    assert (epsilon[100], epsilon[200], epsilon[204], epsilon[300]) == (
        pytest.approx(1 - 0.95 * 99 / 150),
        0.05,
        0.05,
        0.05,
    )
    assert rate == pytest.approx({step: 0.03 * (1 - (step - 1) / 300) for step in range(44, 301, 4)})
    assert rate[200] == pytest.approx(0.01, rel=0.01)
    assert list(events.values("train/updates").values())[-1] == 65  # (300 - 40) / 4, none twice and no fresh warm-up


def test_the_entropy_weight_its_optimiser_and_the_buffer_are_restored() -> None:
    config = sac(total_timesteps=120, learning_starts=40, batch_size=16, buffer_size=90, logging={"every": 1})
    whole, events = Events(), StopsAt(80)
    MANAGER.setup(config, [whole]).train()
    before = run_of(MANAGER.setup(config, [events]))
    stopped = before.train()
    after = run_of(MANAGER.resume(stopped.run_dir, [events]))
    assert after.buffer.total == before.buffer.total == 80
    for name, array in before.buffer.arrays().items():
        np.testing.assert_array_equal(array, after.buffer.arrays()[name], err_msg=name)
    after.train()
    weights = events.values("train/entropy_coef")
    assert weights == whole.values("train/entropy_coef")
    assert sorted(weights) == list(range(41, 121))
    steps = [abs(weights[step + 1] / weights[step] - 1) for step in range(41, 120)]
    assert max(steps) < 0.0012  # Adam moves log alpha by about its step size of 0.001; there is no jump at 80


def test_a_larger_total_is_a_fork_that_keeps_its_buffer() -> None:
    config = dqn(total_timesteps=120, learning_starts=40, batch_size=16, buffer_size=80, logging={"every": 40})
    done = MANAGER.setup(config).train()
    fork = run_of(MANAGER.resume(done.run_dir, total_timesteps=200))
    assert fork.run.run_uid != done.run_uid
    assert (fork.buffer.total, fork.buffer.size, fork.updates) == (120, 80, 20)
    result = fork.train()
    assert (result.num_timesteps, result.metrics["train/updates"]) == (200, 40.0)
    origin = json.loads((fork.run.run_dir / "metadata.json").read_text())["forked_from"]
    assert origin["differences"] == ["total_timesteps: 120 -> 200 (may grow)"]


def test_an_episode_that_could_not_be_brought_back_is_cut_in_the_buffer_for_good() -> None:
    config = dqn("NotDeterministic", num_envs=2, total_timesteps=120, learning_starts=40, n_step=3, buffer_size=100)
    stopped = MANAGER.setup(config, [StopsAt(68)]).train()
    cut = run_of(MANAGER.resume(stopped.run_dir))
    assert cut.buffer.truncated[33].tolist() == [True, True]  # the 34th step of each, in mid-episode
    assert not cut.buffer.terminated[33].any()
    assert cut.buffer.truncated[:34].sum() == 2
    done = cut.train()
    later = run_of(MANAGER.resume(done.run_dir, total_timesteps=200))
    assert later.buffer.total == 120
    assert later.buffer.truncated[33].tolist() == [True, True]  # saved so, though its shard had been written before


def test_settings_of_the_buffer_must_stay() -> None:
    done = MANAGER.setup(CONFIGS["dqn on frames"]).train()
    with pytest.raises(CheckpointError, match=r"frame_channels: 1 -> None \(must be equal\)"):
        MANAGER.resume(done.run_dir, frame_channels=None)
    done = MANAGER.setup(dqn(total_timesteps=120, learning_starts=40)).train()
    with pytest.raises(CheckpointError, match=r"frame_channels: None -> 1 \(must be equal\)"):
        MANAGER.resume(done.run_dir, frame_channels=1)
    with pytest.raises(CheckpointError, match=r"buffer_size: 2000 -> 4000 \(must be equal\)"):
        MANAGER.resume(done.run_dir, buffer_size=4_000)


def test_a_resume_hashes_each_shard_once_and_one_that_was_touched_since_again(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = {"every": 60, "episodes": 1}
    config = dqn(total_timesteps=120, learning_starts=40, buffer_size=100, evaluation=evaluation)
    done = MANAGER.setup(config).train()
    shards = list((done.run_dir / "replay").iterdir())
    hashed: Counter[int] = Counter()
    digest = hashlib.file_digest

    def counted(file: Any, algorithm: Any) -> Any:
        hashed[os.fstat(file.fileno()).st_ino] += 1
        return digest(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    monkeypatch.setattr(manifest, "_SETTLED_NS", -1)
    assert run_of(MANAGER.resume(done.run_dir)).buffer.total == 120
    assert {hashed[shard.stat().st_ino] for shard in shards} == {1}
    checkpoint = open_checkpoint(done.checkpoint or "")
    shard = checkpoint.path / shards[0].name
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged: its sha256 differs from the manifest's"):
        MANAGER.resume(checkpoint)
