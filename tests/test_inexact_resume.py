"""An inexact resume is recorded in the files of the run, in later checkpoints, in the summary and in MLflow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import LIMIT

from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import newest_good
from rl_training.runtime.inexact_resumes import describe_computer
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()

NOISY = {
    "algo": "ppo",
    "env_id": "case_envs:NotDeterministic-v0",
    "total_timesteps": 128,
    "num_envs": 2,
    "rollout_steps": 16,
    "batch_size": 32,
    "epochs": 1,
    "network": {"hidden": [8]},
    "evaluation": {"every": 1_000, "episodes": 1, "final_episodes": 1, "video": False},
}


def settings(**fields: Any) -> Any:
    from rl_training.experiment.loading import config_from_mapping

    return config_from_mapping({**NOISY, **fields})


class StopsAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, state: TrainerState) -> None:
        if state.num_timesteps == self.step:
            state.request_stop()


def in_metadata(result: TrainResult) -> Any:
    return json.loads((result.run_dir / "metadata.json").read_text()).get("inexact", [])


def in_manifest(result: TrainResult) -> Any:
    newest, _ = newest_good(result.run_dir / "checkpoints")
    assert newest is not None
    return newest.manifest.extra["inexact"]


@pytest.mark.slow
def test_fresh_episodes_are_recorded_everywhere(client, tmp_path: Path) -> None:
    config = tmp_path / "noisy.json"
    config.write_text(json.dumps(NOISY))

    def command(*words: object) -> tuple[dict[str, Any], str]:
        arguments = [sys.executable, "-m", "rl_training", *map(str, words), "--json"]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    trained, _ = command("train", "--config", config)
    assert trained["inexact"] == []
    assert "resume.inexact" not in client.get_run(trained["run_id"]).data.tags
    resumed, said = command("resume", trained["run_id"], "--set", "total_timesteps=160")
    expected = [{"num_timesteps": 128, "fresh_episodes": [0, 1], "changed": []}]
    assert resumed["inexact"] == expected
    reason = "the episodes of environments 0, 1 could not be restored, so new ones began"
    assert f"this resume is not exact, at step 128: {reason}" in said
    assert json.loads((Path(resumed["run_dir"]) / "metadata.json").read_text())["inexact"] == expected
    manifest = json.loads((Path(resumed["checkpoint"]) / "manifest.json").read_text())
    assert manifest["extra"]["inexact"] == expected
    assert json.loads(client.get_run(resumed["run_id"]).data.tags["resume.inexact"]) == expected


@pytest.mark.usefixtures("home")
def test_each_inexact_resume_of_a_run_is_recorded_once_and_stays_with_its_forks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped = MANAGER.setup(settings(), [StopsAt(32)]).train()
    assert (in_metadata(stopped), in_manifest(stopped)) == ([], [])
    stopped = MANAGER.resume(stopped.run_dir, [StopsAt(64)]).train()
    done = MANAGER.resume(stopped.run_dir).train()
    assert done.run_uid == stopped.run_uid
    expected = [{"num_timesteps": step, "fresh_episodes": [0, 1], "changed": []} for step in (32, 64)]
    assert in_metadata(done) == in_manifest(done) == expected
    caplog.clear()
    again = MANAGER.resume(done.run_dir)
    assert again.train().stop_reason == "completed"  # nothing is computed any more, so nothing is inexact
    assert again.inexact == in_metadata(done) == expected
    assert "not exact" not in caplog.text
    fork = MANAGER.resume(done.run_dir, total_timesteps=160).train()
    expected.append({"num_timesteps": 128, "fresh_episodes": [0, 1], "changed": []})
    assert in_metadata(fork) == in_manifest(fork) == expected
    assert in_metadata(done) == expected[:2]


@pytest.mark.usefixtures("home")
def test_a_changed_number_of_threads_is_recorded_and_an_exact_resume_is_not() -> None:
    plain = settings(env_id="case_envs:Plain-v0")
    stopped = MANAGER.setup(plain, [StopsAt(32)]).train()
    stopped = MANAGER.resume(stopped.run_dir, [StopsAt(64)]).train()
    assert (in_metadata(stopped), in_manifest(stopped)) == ([], [])
    fork = MANAGER.resume(stopped.run_dir, threads=2).train()
    assert in_metadata(fork) == [{"num_timesteps": 64, "fresh_episodes": [], "changed": ["threads: 1 -> 2"]}]
    assert in_manifest(fork) == in_metadata(fork)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("env_id", "changed"),
    [
        ("case_envs:SmallImage-v0", [["convolutions: channels first -> channels last"]]),
        ("case_envs:Plain-v0", []),
    ],
)
def test_a_run_on_images_that_began_before_channels_last_is_resumed_and_recorded_once(
    env_id: str, changed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe_as_before(*arguments: Any) -> dict[str, Any]:
        return {key: value for key, value in describe_computer(*arguments).items() if key != "convolutions"}

    with monkeypatch.context() as earlier:
        earlier.setattr("rl_training.runtime.loop_parts.inexact_history.describe_computer", describe_as_before)
        stopped = MANAGER.setup(settings(env_id=env_id), [StopsAt(32)]).train()
    stopped = MANAGER.resume(stopped.run_dir, [StopsAt(64)]).train()
    done = MANAGER.resume(stopped.run_dir).train()
    assert [entry["changed"] for entry in in_metadata(done)] == changed
    assert [entry["num_timesteps"] for entry in in_metadata(done)] == [32] * len(changed)


@pytest.mark.parametrize(
    ("device", "images", "order"),
    [("cpu", True, "channels last"), ("cpu", False, None), ("cuda", True, None)],
)
def test_the_order_of_convolutions_is_described_where_it_is_not_torchs(
    device: str, images: bool, order: str | None
) -> None:
    assert describe_computer(torch.device(device), 1, images).get("convolutions") == order


@pytest.mark.usefixtures("home")
def test_another_machine_or_version_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = MANAGER.setup(settings(env_id="case_envs:Plain-v0"), [StopsAt(32)]).train()
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "OTHER")
    monkeypatch.setattr("rl_training.runtime.inexact_resumes.versions", lambda: {"numpy": "9.9.9"})
    done = MANAGER.resume(stopped.run_dir).train()
    (entry,) = in_metadata(done)
    cpu, numpy = entry["changed"]
    assert cpu.startswith("cpu: ")
    assert cpu.endswith(" OTHER")
    assert numpy.startswith("numpy: ")
    assert numpy.endswith(" -> 9.9.9")


@pytest.mark.usefixtures("home")
def test_ppos_advantages_do_not_reach_into_an_episode_that_replaced_another() -> None:
    first: Any = MANAGER.setup(settings(), stop=StopAfterPolls(15))
    stopped = first.train()
    position, expected = first.buffer.position, first.algorithm.value(first.envs.normalized())
    assert 0 < position < 16
    assert not first.buffer.dones[position - 1].any()
    resumed: Any = MANAGER.resume(stopped.run_dir)
    assert resumed.buffer.position == position
    assert resumed.buffer.dones[position - 1].tolist() == [True, True]
    assert not resumed.buffer.terminated[position - 1].any()
    assert resumed.buffer.final_values[position - 1].tolist() == expected.tolist()
    assert resumed.train().stop_reason == "completed"
