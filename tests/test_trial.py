"""A segment of a trial's run: paused, resumed, pruned, failed, and the same numbers as a run that is trained alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import rl_training
from rl_training.errors import TrackingError
from rl_training.runs.stopping import StopFlag
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.engines.engine import ForkOrigin, Lost, Segment
from rl_training.sweeps.engines.local import LocalEngine
from rl_training.sweeps.engines.trial_child import TrialChild
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import find_trial_dir, from_text, make_trial_uid, to_text
from tests.sweep_segments import DQN, PPO, UID, make_segment, read_metrics, run
from tests.waiting import wait_for


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("settings", [PPO, DQN], ids=["ppo", "dqn"])
def test_a_run_that_pauses_at_two_rungs_equals_a_run_alone(settings: dict[str, Any]) -> None:
    alone = rl_training.train(settings, track=False, progress=False)
    records = [run(make_segment(settings, until)) for until in (150, 300, 512)]
    assert [record.state for record in records] == ["paused", "paused", "complete"]
    assert [record.num_timesteps for record in records] == [150, 300, 512]
    first, second, last = records
    assert list(first.evaluations) == [128]
    assert list(second.evaluations) == [128, 256]
    assert list(last.evaluations) == [128, 256, 384, 512]
    assert first.held_out is None
    assert first.summary is None
    assert last.policy_sha256 == alone.policy_sha256
    assert alone.evaluation is not None
    assert last.held_out == alone.evaluation.return_mean
    assert read_metrics(last.run_dir) == read_metrics(alone.run_dir)


def test_a_run_pauses_after_the_evaluation_at_its_rung() -> None:
    record = run(make_segment(PPO, 128))
    assert record.num_timesteps == 128
    assert list(record.evaluations) == [128]


def test_a_complete_segment_that_is_trained_again_gives_the_same_record() -> None:
    first, again = (run(make_segment(PPO, 256)) for _ in range(2))
    assert first == again


def test_the_identity_of_a_run_follows_from_its_sweep_and_key() -> None:
    record = run(make_segment(PPO, 128, trial=7, seed=3, generation=1))
    assert record.run_uid == make_trial_uid(UID, "t0007-s3-g1")
    assert Path(record.run_dir) == find_trial_dir(UID, "t0007-s3-g1")


def test_a_run_is_pruned_at_an_evaluation_below_its_limit_also_when_it_is_resumed() -> None:
    pruning = make_segment(PPO, prune_below={128: -1e9, 256: 1e9, 384: 1e9})
    record = run(pruning)
    assert (record.state, record.num_timesteps) == ("pruned", 256)
    assert record.held_out is None
    assert run(pruning) == record


def test_a_run_at_its_limit_is_not_pruned() -> None:
    first = run(make_segment(PPO))
    value = dict(first.evaluations)
    again = run(make_segment(PPO, trial=1, prune_below=value, prune_above=value))
    assert again.state == "complete"


def test_a_run_that_reaches_its_return_is_complete_and_stays_so() -> None:
    settings = {**PPO, "evaluation": {**PPO["evaluation"], "stop_at_return": -1e9, "stop_after": 1}}
    first = run(make_segment(settings))
    assert (first.state, first.num_timesteps) == ("complete", 128)
    again = run(make_segment(settings))
    assert (again.state, again.num_timesteps) == ("complete", 128)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rollout_steps": 0}, "rollout_steps"),
        ({"env_id": "case_envs:Missing-v0"}, "case_envs:Missing-v0"),
    ],
)
def test_settings_that_can_not_train_make_a_failed_record(changes: dict[str, Any], error: str) -> None:
    record = run(make_segment({**PPO, **changes}))
    assert record.state == "failed"
    assert record.error is not None
    assert error in record.error
    assert "\n" not in record.error
    assert record.policy_sha256 is None


def test_a_metric_that_does_not_exist_fails_with_the_names_of_those_that_do() -> None:
    record = run(make_segment(PPO, metric="eval/retrun"))
    assert record.state == "failed"
    assert record.error is not None
    assert "got eval/retrun, expected one of" in record.error
    assert "eval/return_mean" in record.error


def test_a_server_that_is_not_there_is_no_failure_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingError):
        run(make_segment(PPO, parent_run_id="a" * 32))


def test_a_process_that_died_before_its_first_checkpoint_leaves_a_free_directory() -> None:
    alone = rl_training.train(PPO, track=False, progress=False)
    run_dir = find_trial_dir(UID, "t0000-s0")
    (run_dir / "checkpoints" / ".tmp-1").mkdir(parents=True)
    for name in ("config.yaml", "metadata.json"):
        (run_dir / name).write_bytes((alone.run_dir / name).read_bytes())
    record = run(make_segment(PPO))
    assert record.policy_sha256 == alone.policy_sha256
    assert record.run_uid == make_trial_uid(UID, "t0000-s0")


def test_damaged_checkpoints_are_kept_beside_the_run_that_begins_again() -> None:
    first = run(make_segment(PPO, 256))
    for manifest in Path(first.run_dir).glob("checkpoints/step_*/manifest.json"):
        manifest.write_text("{}")
    again = run(make_segment(PPO, 256))
    assert again.policy_sha256 == first.policy_sha256
    assert Path(f"{first.run_dir}.damaged-1", "checkpoints").is_dir()


def test_segments_and_records_are_equal_after_a_journey_as_json() -> None:
    segment = make_segment(PPO, prune_below={128: 0.1 + 0.2}, fork_of=ForkOrigin("t0001-s0", 5, ({"trial": 1},)))
    assert from_text(to_text(segment), Segment) == segment
    record = RunRecord(3, "u", None, "/d", "paused", 10, {10: 1 / 3}, None, lineage=({"trial": 1},))
    assert from_text(to_text(record), RunRecord) == record
    with pytest.raises(NotReadable, match="seed"):
        from_text(b'{"run_uid": "u"}', RunRecord)


@pytest.mark.slow
def test_processes_train_what_this_process_would() -> None:
    here = run(make_segment(PPO))
    segments = [make_segment(PPO, trial=trial) for trial in (1, 2)]
    ended = {segment.key: record for segment, record in LocalEngine().run(segments, StopFlag())}
    assert set(ended) == {"t0001-s0", "t0002-s0"}
    for record in ended.values():
        assert isinstance(record, RunRecord)
        assert record.policy_sha256 == here.policy_sha256


@pytest.mark.slow
def test_a_killed_process_is_lost_and_the_next_one_continues_its_run() -> None:
    here = run(make_segment(PPO))
    segment = make_segment(PPO, trial=1)
    child = TrialChild(segment)
    run_dir = find_trial_dir(UID, segment.key)
    wait_for(lambda: any(run_dir.glob("checkpoints/step_*")) or child.popen.poll() is not None)
    child.kill()
    result = child.wait()
    assert isinstance(result, RunRecord) or "was killed by signal 9" in result.reason
    again = TrialChild(segment).wait()
    assert isinstance(again, RunRecord)
    assert again.policy_sha256 == here.policy_sha256


@pytest.mark.slow
def test_a_trial_ends_when_its_sweep_is_killed() -> None:
    program = """
import sys
from rl_training.sweeps.engines.trial_child import TrialChild
from tests.sweep_segments import PPO, make_segment
child = TrialChild(make_segment({**PPO, "total_timesteps": 10**9}, 10**9))
print(child.popen.pid, flush=True)
child.wait()
"""
    sweep = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert sweep.stdout is not None
    pid = int(sweep.stdout.readline())
    wait_for(lambda: any(find_trial_dir(UID, "t0000-s0").glob("checkpoints/step_*")))
    sweep.kill()
    sweep.wait()
    sweep.stdout.close()
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_a_stop_saves_the_running_trials_and_yields_nothing() -> None:
    segments = [make_segment({**PPO, "total_timesteps": 10**9}, 10**9, trial=trial) for trial in range(2)]
    stop, engine = StopFlag(), LocalEngine()

    def stop_when_the_first_trains() -> None:
        wait_for(lambda: any(find_trial_dir(UID, segments[0].key).glob("checkpoints/step_*")))
        stop.request("signal")

    thread = threading.Thread(target=stop_when_the_first_trains)
    thread.start()
    assert list(engine.run(segments, stop)) == []
    thread.join()


def test_a_lost_segment_names_the_signal_and_its_log() -> None:
    child = TrialChild(make_segment(PPO))
    child.popen.send_signal(signal.SIGKILL)
    result = child.wait()
    assert isinstance(result, Lost)
    assert result.reason.startswith("its process was killed by signal 9")
    assert str(child.log) in result.reason


def test_an_offline_run_keeps_its_tags_and_data_for_sync() -> None:
    record = run(make_segment(PPO, 128, offline=True))
    tracking = json.loads((Path(record.run_dir) / "tracking.json").read_text())
    assert {key: tracking["tags"][key] for key in ("rl_training.sweep", "rl_training.trial", "rl_training.phase")} == {
        "rl_training.sweep": UID,
        "rl_training.trial": "t0000-s0",
        "rl_training.phase": "search",
    }
    status = json.loads((Path(record.run_dir) / "status.json").read_text())
    assert (status["status"], status["stop_reason"]) == ("FINISHED", "paused")
    assert record.run_id is None
