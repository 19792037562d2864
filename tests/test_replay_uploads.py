"""Replay shards in MLflow: uploaded once a run, however many checkpoints name them, and downloaded with each."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mlflow.tracking import MlflowClient
from mlflow_store import ship_all

from rl_training import run_layout
from rl_training.cli.app import app
from rl_training.errors import CheckpointError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_policy_state,
    load_trainer_state,
    open_checkpoint,
    replay_shards,
)
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.sync import sync
from tests.off_policy_runs import Events, StopsAt, dqn

MANAGER = DefaultExperimentManager()
CONFIG = dqn(
    "CartPole-v1",
    num_envs=2,
    learning_starts=20,
    total_timesteps=200,
    buffer_size=120,
    batch_size=16,
    target_update_every=30,
    network={"hidden": [16]},
    logging={"every": 20},
    evaluation={"every": 1_000, "episodes": 2, "num_envs": 2, "final_episodes": 2},
    checkpoint={"every": 40, "keep_last": 10},
)


@pytest.fixture(autouse=True)
def small_shards(home, monkeypatch):
    """Twenty transitions of 46 bytes, ten steps, and the home of a test's own store."""
    monkeypatch.setattr(replay_shards, "PIECE_BYTES", 20 * 46)


def train(until: int) -> tuple[Path, Events]:
    """Trains and stops there; returns the run's directory, tracked from here on, and what was measured."""
    events = StopsAt(until)
    run_dir = MANAGER.setup(CONFIG, [events]).train().run_dir
    track(run_dir)
    return run_dir, events


def track(run_dir: Path) -> None:
    json_files.write_json(run_dir / run_layout.TRACKING, describe_run(run_dir, CONFIG, {}))


def checkpoints_of(run_dir: Path) -> dict[int, Checkpoint]:
    found, skipped = list_checkpoints(run_dir / "checkpoints")
    assert skipped == []
    return {checkpoint.num_timesteps: checkpoint for checkpoint in found}


def shards_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Returns the size of each of a checkpoint's shards, by name."""
    return {s["file"]: checkpoint.manifest.files[s["file"]].size for s in checkpoint.manifest.extra["replay"]}


def listing(client: MlflowClient, run_id: str, folder: str) -> dict[str, int]:
    return {Path(entry.path).name: entry.file_size for entry in client.list_artifacts(run_id, folder)}


def stored(client: MlflowClient, run_id: str, path: str) -> Path:
    """Returns where the embedded store keeps an artifact, to be damaged."""
    return Path(urlsplit(client.get_run(run_id).info.artifact_uri).path) / path


@pytest.fixture
def sent(monkeypatch) -> list[str]:
    """The artifacts that are sent to the store, in order."""
    names: list[str] = []
    log_artifact = MlflowClient.log_artifact

    def recorded(self, run_id, local_path, artifact_path=None):
        log_artifact(self, run_id, local_path, artifact_path)
        names.append(f"{artifact_path or '.'}/{Path(local_path).name}")

    monkeypatch.setattr(MlflowClient, "log_artifact", recorded)
    return names


def test_checkpoints_that_share_shards_upload_each_of_them_once(client, sent):
    run_dir, _ = train(80)
    checkpoints = checkpoints_of(run_dir)
    assert sorted(checkpoints) == [0, 40, 80]
    first, second = shards_of(checkpoints[40]), shards_of(checkpoints[80])
    assert (len(first), len(second), first.items() <= second.items()) == (2, 4, True)

    run_id = ship_all(run_dir).address.run_id
    assert listing(client, run_id, "replay") == second
    assert Counter(name for name in sent if name.startswith("replay/")) == {f"replay/{name}": 1 for name in second}
    for step in (40, 80):
        folder = f"checkpoints/step_{step:012d}"
        own = {"config.yaml", "manifest.json", "policy.pt", "trainer.pt"}
        assert listing(client, run_id, folder).keys() == own
        manifest = json.loads(stored(client, run_id, f"{folder}/manifest.json").read_text())
        assert {name: manifest["files"][name]["size"] for name in shards_of(checkpoints[step])} == shards_of(
            checkpoints[step]
        )
        order = [name for name in sent if name.startswith((folder, "replay/"))]
        mine = {f"replay/{name}" for name in shards_of(checkpoints[step])}
        assert max(order.index(name) for name in mine) < min(order.index(f"{folder}/{name}") for name in own)
        assert order[-1] == f"{folder}/manifest.json" or step == 40

    sent.clear()
    (run_dir / run_layout.SHIPPED).unlink()  # as after a kill between sending and writing the cursor
    ship_all(run_dir)
    assert sent.count("checkpoints/step_000000000080/manifest.json") == 1
    assert [name for name in sent if name.startswith("replay/")] == []


def test_a_resume_on_another_machine_equals_the_uninterrupted_run(client, sent):
    whole = Events()
    expected = MANAGER.setup(CONFIG, [whole]).train()
    run_dir, events = train(160)  # 160 transitions in a ring of 120: shards of the first 40 are no longer needed
    run_id = ship_all(run_dir).address.run_id
    shutil.rmtree(run_dir)
    checkpoint = download_checkpoint(run_id)
    assert checkpoint.num_timesteps == 160
    assert {path.name for path in checkpoint.path.iterdir()} == {"manifest.json", *checkpoint.manifest.files}

    assert not run_dir.exists()
    resumed = MANAGER.resume(checkpoint, [events]).train()
    assert (resumed.run_uid, resumed.num_timesteps) == (checkpoint.run_uid, 200)
    assert events.points == whole.points
    assert resumed.checkpoint is not None
    assert expected.checkpoint is not None
    ours, theirs = open_checkpoint(resumed.checkpoint), open_checkpoint(expected.checkpoint)
    assert ours.policy_sha256 == theirs.policy_sha256
    assert shards_of(ours) == shards_of(theirs)  # by their hashes: the buffer, bit for bit

    sent.clear()
    track(resumed.run_dir)
    assert ship_all(resumed.run_dir).address.run_id == run_id
    new = shards_of(ours).keys() - shards_of(checkpoint).keys()
    assert sorted(name for name in sent if name.startswith("replay/")) == sorted(f"replay/{name}" for name in new)
    assert len(new) == 2


def test_an_upload_that_is_cut_off_anywhere_leaves_no_half_checkpoint(client, monkeypatch):
    run_dir, _ = train(40)
    shutil.rmtree(run_dir / "checkpoints" / "step_000000000000")
    (checkpoint,) = checkpoints_of(run_dir).values()
    aside = run_dir.with_name("aside")
    log_artifact, uploads, cuts = MlflowClient.log_artifact, Counter(), 0

    def cut(self, run_id, local_path, artifact_path=None):
        if artifact_path is not None and artifact_path.startswith(("checkpoints/step", "replay")):
            uploads[Path(local_path).name] += 1
            if uploads[Path(local_path).name] == 1:
                raise ConnectionError("cut off")
        log_artifact(self, run_id, local_path, artifact_path)

    monkeypatch.setattr(MlflowClient, "log_artifact", cut)
    while True:
        try:
            run_id = ship_all(run_dir).address.run_id
            break
        except ConnectionError:
            cuts += 1
        run_id = json_files.read_json(run_dir / run_layout.MLFLOW)["run_id"]
        run_dir.rename(aside)  # on another machine
        with pytest.raises(CheckpointError, match=f"run {run_id} has no good checkpoint in MLflow"):
            download_checkpoint(run_id)
        aside.rename(run_dir)
    assert cuts == 6  # at each of two shards, the settings, the policy, the trainer's state, and the manifest
    assert {uploads[name] for name in shards_of(checkpoint)} == {2}  # what had arrived was not sent again
    run_dir.rename(aside)
    assert download_checkpoint(run_id).policy_sha256 == checkpoint.policy_sha256


@pytest.mark.parametrize(
    ("damage", "said"),
    [(lambda path: path.write_bytes(path.read_bytes()[:-9] + b"123456789"), "is damaged"), (Path.unlink, "is missing")],
)
def test_a_shard_that_is_damaged_in_mlflow_is_named_and_an_older_checkpoint_taken(client, caplog, damage, said):
    run_dir, _ = train(80)
    checkpoints = checkpoints_of(run_dir)
    run_id = ship_all(run_dir).address.run_id
    shutil.rmtree(run_dir)
    new = sorted(shards_of(checkpoints[80]).keys() - shards_of(checkpoints[40]).keys())
    damage(stored(client, run_id, f"replay/{new[0]}"))
    with pytest.raises(CheckpointError, match=f"{new[0]} {said}"):
        download_checkpoint(f"runs:/{run_id}/checkpoints/step_000000000080")
    assert download_checkpoint(run_id).num_timesteps == 40
    assert f"{new[0]} {said}" in caplog.text


def test_evaluation_fetches_settings_and_policy_alone(client, capfd):
    run_dir, _ = train(80)
    checkpoint = checkpoints_of(run_dir)[80]
    expected = evaluate_checkpoint(checkpoint)
    run_id = ship_all(run_dir).address.run_id
    shutil.rmtree(run_dir)
    shutil.rmtree(stored(client, run_id, "replay"))
    stored(client, run_id, "checkpoints/step_000000000080/trainer.pt").unlink()
    found = download_checkpoint(run_id, wanted="policy")
    assert {path.name for path in found.path.iterdir()} == {"manifest.json", "config.yaml", "policy.pt"}
    assert evaluate_checkpoint(found) == expected
    with pytest.raises(CheckpointError, match=r"trainer\.pt"):
        load_trainer_state(found)
    for source in (run_id, f"runs:/{run_id}/checkpoints/step_000000000080", str(found.path)):
        assert app(["evaluate", source, "--json"], result_action="return_value") == 0
        result = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert result["policy_sha256"] == checkpoint.policy_sha256
        assert result["evaluation"]["return_mean"] == expected.return_mean
    with pytest.raises(CheckpointError, match="is missing"):
        download_checkpoint(f"runs:/{run_id}/checkpoints/step_000000000080")


def test_fine_tuning_fetches_all_but_the_replay_buffer(client, caplog):
    run_dir, _ = train(80)
    run_id = ship_all(run_dir).address.run_id
    shutil.rmtree(run_dir)
    shutil.rmtree(stored(client, run_id, "replay"))
    found = download_checkpoint(run_id, wanted="weights")
    assert {path.name for path in found.path.iterdir()} == {"manifest.json", "config.yaml", "policy.pt", "trainer.pt"}
    trainer: Any = DefaultExperimentManager().resume(found, fine_tune=True)
    assert trainer.algorithm.policy_state().keys() == load_policy_state(found)["weights"].keys()
    assert (trainer.num_timesteps, trainer.buffer.total) == (0, 0)
    trainer.discard()
    with stored(client, run_id, "checkpoints/step_000000000080/trainer.pt").open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    assert download_checkpoint(run_id, wanted="weights").num_timesteps < 80
    assert "step_000000000080/trainer.pt is damaged: its sha256 differs from the manifest's" in caplog.text


def test_sync_sends_the_shards_of_a_run_that_was_trained_offline(client, sent):
    run_dir, _ = train(80)
    shards = shards_of(checkpoints_of(run_dir)[80])
    json_files.write_json(run_dir / run_layout.STATUS, {"status": "FINISHED", "stop_reason": "completed", "time": 2e9})
    run_id = sync(run_dir).run_id
    assert listing(client, run_id, "replay") == shards
    client.delete_run(run_id)
    assert listing(client, sync(run_dir, new_run=True).run_id, "replay") == shards  # the new run has its own
    assert Counter(name for name in sent if name.startswith("replay/")) == {f"replay/{name}": 2 for name in shards}
