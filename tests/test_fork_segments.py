"""A segment that begins as a fork: where its checkpoint comes from, and what is on record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import CheckpointError
from rl_training.run_layout import checkpoint_name
from rl_training.runs.metadata import read_metadata
from rl_training.sweeps.engines.engine import ForkOrigin, Segment
from rl_training.sweeps.engines.trial_child import TrialChild
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import find_trial_dir, from_text, make_trial_uid, to_text
from rl_training.sweeps.trial import run_segment
from tests.sweep_segments import DQN, PPO, UID, make_segment, run
from tests.waiting import wait_for

LINEAGE = ({"trial": 0, "run_uid": make_trial_uid(UID, "t0000-s0"), "num_timesteps": 150, "params": {"gamma": 0.99}},)
MANY = {"every": 50}
"""So many checkpoints that a paused one would be removed before the next pause."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))


def make_fork(settings: dict[str, Any], until: int = 512, **changes: Any) -> Segment:
    """Returns the segment of trial 1 that begins as a fork of trial 0 at step 150."""
    origin = ForkOrigin("t0000-s0", 150, LINEAGE)
    return make_segment(settings, until, trial=1, generation=1, fork_of=origin, forkable=True, **changes)


@pytest.mark.parametrize("settings", [PPO, DQN], ids=["ppo", "dqn"])
def test_a_fork_may_begin_after_its_origin_has_reached_the_next_pause(settings: dict[str, Any]) -> None:
    settings = {**settings, "checkpoint": {**MANY, "keep_last": 1}}
    first, second = (run(make_segment(settings, until, forkable=True)) for until in (150, 300))
    record = run(make_fork({**settings, "run_name": "another"}, 300))
    assert (record.state, record.num_timesteps, record.lineage) == ("paused", 300, LINEAGE)
    assert record.run_uid == make_trial_uid(UID, "t0001-s0-g1")
    assert record.run_dir == str(find_trial_dir(UID, "t0001-s0-g1"))
    assert record.policy_sha256 == second.policy_sha256  # its settings are equal, and so is what it learns
    assert record.evaluations == second.evaluations
    forked_from = read_metadata(Path(record.run_dir))["forked_from"]
    assert forked_from["run_uid"] == first.run_uid
    assert forked_from["num_timesteps"] == 150
    assert forked_from["policy_sha256"] == first.policy_sha256
    assert forked_from["lineage"] == list(LINEAGE)
    kept = json.loads((Path(record.run_dir) / "checkpoints" / "kept.json").read_text())
    assert kept == {"num_timesteps": [300]}


def test_pauses_that_nobody_forks_are_not_kept() -> None:
    settings = {**PPO, "checkpoint": {**MANY, "keep_last": 1}}
    for until in (150, 300):
        record = run(make_segment(settings, until))
    assert not (Path(record.run_dir) / "checkpoints" / "kept.json").exists()
    assert not (Path(record.run_dir) / "checkpoints" / checkpoint_name(150)).exists()


def test_a_fork_that_has_begun_continues_by_itself() -> None:
    run(make_segment(PPO, 150, forkable=True))
    whole = run(make_fork({**PPO, "gamma": 0.9}))
    shutil.rmtree(whole.run_dir)
    run(make_fork({**PPO, "gamma": 0.9}, 300))
    shutil.rmtree(find_trial_dir(UID, "t0000-s0"))
    again = run(make_fork({**PPO, "gamma": 0.9}))
    assert (again.state, again.policy_sha256) == ("complete", whole.policy_sha256)
    assert again.lineage == LINEAGE


def test_a_fork_without_its_checkpoint_is_lost_and_has_not_failed() -> None:
    with pytest.raises(CheckpointError, match=r"t0001-s0-g1 is a fork of t0000-s0 at step 150, and .* is not that"):
        run_segment(make_fork(PPO))
    assert not find_trial_dir(UID, "t0001-s0-g1").exists()


def test_a_directory_of_another_run_is_no_origin() -> None:
    run(make_segment(PPO, 150, forkable=True))
    shutil.move(find_trial_dir(UID, "t0000-s0"), find_trial_dir(UID, "t0007-s0"))
    segment = make_fork(PPO)
    wrong = make_segment(PPO, trial=1, generation=1, fork_of=ForkOrigin("t0007-s0", 150, LINEAGE))
    for each in (segment, wrong):
        with pytest.raises(CheckpointError, match="is not that checkpoint"):
            run_segment(each)


def test_the_origin_of_a_fork_is_equal_after_a_journey_as_json() -> None:
    segment = make_fork(PPO)
    assert from_text(to_text(segment), Segment) == segment


@pytest.mark.slow
def test_a_killed_fork_is_forked_or_resumed_to_the_same_bytes() -> None:
    run(make_segment(PPO, 150, forkable=True))
    whole = run(make_fork({**PPO, "gamma": 0.9}))
    shutil.rmtree(whole.run_dir)
    for moment in ("metadata.json", "checkpoints/step_*", "checkpoints/step_*2*"):
        child = TrialChild(make_fork({**PPO, "gamma": 0.9}))
        wait_for(
            lambda moment=moment, child=child: (
                any(find_trial_dir(UID, "t0001-s0-g1").glob(moment)) or child.popen.poll() is not None
            )
        )
        child.kill()
        child.wait()
    again = TrialChild(make_fork({**PPO, "gamma": 0.9})).wait()
    assert isinstance(again, RunRecord)
    assert (again.policy_sha256, again.evaluations) == (whole.policy_sha256, whole.evaluations)


@pytest.mark.slow
def test_a_fork_on_another_machine_begins_with_the_checkpoint_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    first, second = (run(make_segment(PPO, until, forkable=True, parent_run_id="a" * 32)) for until in (150, 300))
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "elsewhere"))
    record = run(make_fork({**PPO, "run_name": "another"}, 300, parent_run_id="a" * 32))
    assert record.policy_sha256 == second.policy_sha256
    assert read_metadata(Path(record.run_dir))["forked_from"]["policy_sha256"] == first.policy_sha256

    from rl_training.tracking.mlflow_store import connect

    assert record.run_id is not None
    tags = connect(f"sqlite:///{tmp_path}/mlflow.db").get_run(record.run_id).data.tags
    assert tags["forked_from.run_id"] == first.run_id
    assert json.loads(tags["forked_from.lineage"]) == list(LINEAGE)
