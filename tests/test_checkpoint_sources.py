"""Where checkpoints come from: the newest valid one, by the step in its manifest, verified."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mlflow.entities import FileInfo
from mlflow_store import BAD, GOOD, WEAK, run_with_policy, ship_all, tracked_run, write_policy

from rl_training.cli.app import run as command_line
from rl_training.errors import CheckpointError, TrackingError, UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.candidates import find_candidate
from rl_training.promotion.promote import promote
from rl_training.runtime.checkpoint import load_trainer_state
from rl_training.runtime.checkpoint.downloads import Download, read_download
from rl_training.runtime.workflows import load_policy
from rl_training.serving.mlflow_pages import find_page
from rl_training.system.download_directories import discard_downloads
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import download_checkpoint


def stored_file(client, run_id, path):
    """Returns the file of an artifact in the embedded store, to be damaged."""
    return Path(urlsplit(client.get_run(run_id).info.artifact_uri).path) / path


@pytest.fixture
def run(client):
    run_dir = tracked_run()
    checkpoints = [write_policy(run_dir, step, gains) for step, gains in [(100, BAD), (200, WEAK), (300, GOOD)]]
    return checkpoints, ship_all(run_dir).address.run_id


def test_a_run_id_gives_its_complete_newest_checkpoint(client, home, run):
    checkpoints, run_id = run
    for source in (run_id, f"runs:/{run_id}", f"runs:/{run_id}/checkpoints"):
        found = download_checkpoint(source)
        assert found.num_timesteps == 300
        assert found.policy_sha256 == checkpoints[2].policy_sha256
        assert load_trainer_state(found) == {"step": 300}
        assert found.path.is_relative_to(home / "downloads")
        assert found.path != checkpoints[2].path


def test_a_path_that_a_store_names_leads_nowhere_else(client, home, monkeypatch, run):
    """A server answers what it likes; MLflow's own client would write where the path says."""
    checkpoints, run_id = run
    shutil.rmtree(checkpoints[0].path.parents[1])

    before = sorted(home.rglob("*"))
    for path in ("../../outside", "checkpoints/../../outside", "/outside", "checkpoints/.."):

        def listed(self, run_id, folder=None, path=path):
            name = f"{folder}/manifest.json" if folder == path else path
            return [FileInfo(name, is_dir=name == path, file_size=None)]

        monkeypatch.setattr(type(client), "list_artifacts", listed)
        with pytest.raises(CheckpointError, match="which is no checkpoint's path"):
            download_checkpoint(run_id)
    assert [new for new in sorted(home.rglob("*")) if new not in before and "downloads" not in new.parts] == []


def test_a_link_in_the_place_of_a_file_to_be_renamed_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / f".status.json.{os.getpid()}.tmp").symlink_to(outside)
    json_files.write_json(tmp_path / "status.json", {"status": "FINISHED"})
    assert outside.read_text() == "mine"
    assert json_files.read_json(tmp_path / "status.json") == {"status": "FINISHED"}
    assert not (tmp_path / "status.json").is_symlink()


def test_the_runs_own_directory_is_asked_for_a_later_one(client, run):
    checkpoints, run_id = run
    later = write_policy(checkpoints[0].path.parents[1], 400, GOOD)
    assert download_checkpoint(run_id).path == later.path
    assert download_checkpoint(f"runs:/{run_id}/checkpoints/step_000000000300").path != checkpoints[2].path


def test_what_is_downloaded_knows_whether_it_is_the_newest(client, run):
    checkpoints, run_id = run
    run_dir = checkpoints[0].path.parents[1]
    newest, earlier = (
        read_download(download_checkpoint(source))
        for source in (run_id, f"runs:/{run_id}/checkpoints/step_000000000200")
    )
    assert newest == Download(newest=True, run_dir=run_dir)
    assert earlier == Download(newest=False, run_dir=run_dir)


def test_a_path_gives_that_checkpoint(client, run):
    checkpoints, run_id = run
    found = download_checkpoint(f"runs:/{run_id}/checkpoints/step_000000000100")
    assert found.policy_sha256 == checkpoints[0].policy_sha256


def test_what_is_damaged_or_half_there_is_skipped_and_said(client, run, caplog):
    checkpoints, run_id = run
    shutil.rmtree(checkpoints[0].path.parent)  # the run's own directory is on another machine
    stored_file(client, run_id, "checkpoints/step_000000000300/manifest.json").unlink()  # an upload that did not end
    with stored_file(client, run_id, "checkpoints/step_000000000200/policy.pt").open("r+b") as file:
        file.seek(40)
        file.write(b"\xff")
    found = download_checkpoint(run_id)
    assert found.num_timesteps == 100
    assert "step_000000000300 has no manifest.json: its upload did not end" in caplog.text
    assert "step_000000000200/policy.pt is damaged" in caplog.text
    stored_file(client, run_id, "checkpoints/step_000000000100/policy.pt").unlink()
    with pytest.raises(CheckpointError, match=f"run {run_id} has no good checkpoint in MLflow"):
        download_checkpoint(run_id)


def test_the_newest_is_by_the_manifest_and_not_by_name(client, run):
    _, run_id = run
    root = stored_file(client, run_id, "checkpoints")
    (root / "step_000000000300").rename(root / "step_000000000050")
    assert download_checkpoint(run_id).num_timesteps == 300


def test_a_directory_is_taken_where_it_is(client, run):
    checkpoints, _ = run
    assert download_checkpoint(checkpoints[0].path).path == checkpoints[0].path
    assert download_checkpoint(str(checkpoints[0].path.parent.parent)).num_timesteps == 300


def test_a_model_gives_its_runs_checkpoint_and_else_its_own_copy(client, home, caplog):
    checkpoint, run_id = run_with_policy(GOOD)
    result = promote(checkpoint, config_of_checkpoint(checkpoint), run_id=run_id)
    for source in ("models:/CartPole-v1@champion", f"models:/CartPole-v1/{result.version}"):
        found = download_checkpoint(source)
        assert found.policy_sha256 == checkpoint.policy_sha256
        assert load_trainer_state(found) == {"step": 100}
    stored_file(client, run_id, "checkpoints/step_000000000100/trainer.pt").unlink()
    found = download_checkpoint("models:/CartPole-v1@champion")
    assert "it can only be evaluated or fine-tuned" in caplog.text
    assert found.policy_sha256 == checkpoint.policy_sha256
    assert load_policy(found).act([[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]]) == [1, 0]
    with pytest.raises(CheckpointError, match=r"trainer\.pt"):
        load_trainer_state(found)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("0" * 32, "has no such thing: Run with id=0+ not found"),
        ("models:/Nothing@champion", "has no such thing: Registered Model with name=Nothing not found"),
        ("nowhere/at/all", "is no checkpoint; expected"),
        ("models:/Nothing", "is no checkpoint; expected"),
        ("a" * 5000, "can't be a path or the name of a run"),
    ],
)
def test_unknown_sources_are_one_line(home, source, message):
    with pytest.raises(UserError, match=message) as caught:
        download_checkpoint(source)
    assert "\n" not in str(caught.value)


def test_a_missing_path_of_a_run_is_an_error(client, run):
    _, run_id = run
    with pytest.raises(CheckpointError, match=f"run {run_id} has no checkpoints/step_000000000999 in MLflow"):
        download_checkpoint(f"runs:/{run_id}/checkpoints/step_000000000999")


@pytest.mark.slow
def test_a_server_that_is_away_is_another_error_than_no_such_run(home):
    with pytest.raises(TrackingError, match="can't be reached"):
        download_checkpoint("0" * 32, tracking_uri="http://127.0.0.1:9")


@pytest.fixture(params=["flow", "monitor", "promote", "resume"])
def use(request):
    """Returns a function that downloads a run's checkpoint and uses it, by a public path of each kind."""
    from rl_training.api.promotion import promote_candidate
    from rl_training.api.train_and_resume import resume_training
    from rl_training.flows.flow_process import prepare_flow_process
    from rl_training.promotion.monitoring import monitor

    def resume(run_id):
        small = ["total_timesteps=32", "rollout_steps=4", "batch_size=32"]
        with pytest.raises(CheckpointError, match=r"trainer\.pt is refused"):  # it holds a number in place of a state
            resume_training(run_id, small, fine_tune=True, track=False)

    def flow(run_id):
        with prepare_flow_process():
            assert download_checkpoint(run_id).path.is_dir()

    small = ["promotion.episodes=20"]
    return {
        "flow": flow,
        "monitor": lambda run_id: monitor(run_id, small),
        "promote": lambda run_id: promote_candidate(run_id, small),
        "resume": resume,
    }[request.param]


def test_a_download_ends_with_its_use(client, home, use):
    checkpoint, run_id = run_with_policy(WEAK)
    shutil.rmtree(checkpoint.path.parents[1])  # the run's own directory is on another machine
    use(run_id)
    assert list((home / "downloads").iterdir()) == []


DOWNLOAD_AND_DIE = """
import os, signal, sys
from rl_training.tracking.checkpoint_sources import download_checkpoint
print(download_checkpoint(sys.argv[1]).path, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_leaves_no_download_and_removes_what_a_killed_one_has_left(client, home, run):
    _, run_id = run

    def end(how):
        command = [sys.executable, "-c", DOWNLOAD_AND_DIE, run_id, how]
        ended = subprocess.run(command, capture_output=True, text=True, check=how == "well")
        return Path(ended.stdout.strip())

    left = end("killed")
    assert left.is_dir()
    with discard_downloads():
        in_use = download_checkpoint(run_id)
        assert not left.exists()
        gone = end("well")
        assert gone.is_relative_to(home / "downloads")
        assert not gone.exists()
        assert in_use.path.is_dir()
    assert list((home / "downloads").iterdir()) == []


def test_a_folder_that_an_earlier_version_left_is_removed_after_a_day(client, home, run):
    _, run_id = run
    old, new = home / "downloads" / "tmpold", home / "downloads" / "tmpnew"
    for folder in (old, new):
        (folder / "checkpoints").mkdir(parents=True)
    os.utime(old, (0, 0))
    with discard_downloads():
        assert download_checkpoint(run_id, tracking_uri=embedded_tracking_uri()).num_timesteps == 300
    assert [path.name for path in (home / "downloads").iterdir()] == ["tmpnew"]


def test_a_run_is_found_by_its_uid_too(client, run):
    checkpoints, run_id = run
    uid = checkpoints[0].run_uid
    assert uid != run_id
    for source in (uid, f"runs:/{uid}"):
        assert download_checkpoint(source).source == f"runs:/{run_id}/checkpoints/step_000000000300"
    assert download_checkpoint(f"runs:/{uid}/checkpoints/step_000000000100").num_timesteps == 100
    candidate = find_candidate(uid)
    assert (candidate.run_id, candidate.checkpoint.num_timesteps) == (run_id, 300)
    assert f"/runs/{run_id}?" in find_page(uid, embedded_tracking_uri())


def test_a_run_that_mlflow_does_not_have_is_found_in_the_home_by_its_uid(home):
    checkpoint = write_policy(tracked_run(), 100, GOOD)
    assert download_checkpoint(checkpoint.run_uid).path == checkpoint.path
    assert download_checkpoint(f"runs:/{checkpoint.run_uid}/checkpoints/{checkpoint.path.name}").path == checkpoint.path
    for find in (find_candidate, lambda uid: find_page(uid, embedded_tracking_uri())):
        with pytest.raises(UserError, match="sync"):
            find(checkpoint.run_uid)


def test_evaluate_names_the_address_of_what_it_downloaded(client, run, capfd):
    _, run_id = run
    address = f"runs:/{run_id}/checkpoints/step_000000000300"
    assert command_line(["evaluate", run_id, "--episodes", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["checkpoint"] == address
    assert command_line(["evaluate", run_id, "--episodes", "1"]) == 0
    assert f"checkpoint: {address}\n" in capfd.readouterr().out


def test_evaluate_names_the_version_whose_copy_it_downloaded(client, capfd):
    checkpoint, run_id = run_with_policy(GOOD)
    promote(checkpoint, config_of_checkpoint(checkpoint), run_id=run_id)
    assert command_line(["evaluate", "models:/CartPole-v1@champion", "--episodes", "1"]) == 0
    assert "checkpoint: models:/CartPole-v1/1\n" in capfd.readouterr().out


def test_an_error_about_a_download_names_its_address(client, run):
    checkpoints, run_id = run
    shutil.rmtree(checkpoints[0].path.parent)
    with stored_file(client, run_id, "checkpoints/step_000000000300/policy.pt").open("r+b") as file:
        file.seek(40)
        file.write(b"\xff")
    address = f"runs:/{run_id}/checkpoints/step_000000000300"
    with pytest.raises(CheckpointError, match=f"^{address}/policy.pt is damaged"):
        download_checkpoint(address)
