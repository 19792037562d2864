"""The page of a sweep in a real MLflow store: what it holds, and that sending it again changes nothing."""

import csv
import json
from pathlib import Path

import pytest
from made_up_sweeps import make_sweep, one_round, point, record, trial
from mlflow_store import stored_points, tracked_run

from rl_training.api.run_listing import list_runs
from rl_training.cli.app import run as command_line
from rl_training.errors import TrackingError
from rl_training.experiment.loading import load_config
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.page import page_files, sweep_page
from rl_training.sweeps.page.page_upload import open_page, send_page
from rl_training.sweeps.page.sweep_page import TrackedPage
from rl_training.sweeps.page.sweep_sync import sync_sweep
from rl_training.sweeps.running import run_sweep
from rl_training.sweeps.segments import find_trial_dir
from rl_training.sweeps.sweep_result import make_result
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.mlflow_names import KIND, PARENT, SWEEP_UID, WINNER
from rl_training.tracking.mlflow_store import NOTE
from tests.sweep_runs import GRID, InProcessEngine

SEEDS = (1_000_003, 1_000_004)
GOOD, LUCKY = {"learning_rate": 0.002, "gamma": 0.9}, {"learning_rate": 0.003, "gamma": 0.99}

FIRST = one_round(point(0, 0.003, 90.0, gamma=0.99), point(1, 0.002, 80.0))
SECOND = one_round(point(2, 0.005, 5.0, "pruned", 300), point(3, 0.006, None, "failed"))


def confirmed(number, params, held_out):
    return trial(number, params, 1.0, seeds=SEEDS, phase="confirmation", held_out=held_out)


CONFIRMATION = one_round(
    confirmed(4, {}, [1.0, 2.0]), confirmed(5, LUCKY, [5.0, 6.0]), confirmed(6, GOOD, [30.0, 40.0])
)
ROUNDS = [FIRST, SECOND, CONFIRMATION]


@pytest.fixture
def sweep(home):
    return make_sweep(confirmation={"points": 2, "seeds": 2})


@pytest.fixture(autouse=True)
def every_update_counts(monkeypatch):
    monkeypatch.setattr(sweep_page, "UPDATE_SECONDS", 0.0)
    monkeypatch.setattr(sweep_page, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(page_files, "save_png", lambda figure: b"a picture")  # tests of pictures draw them


def finish(page, sweep, rounds=ROUNDS, *, finished=True):
    page.finish(rounds, make_result(sweep, rounds, finished=finished, continue_with="rl-training sweep FILE"))


def values(client, run_id):
    """Returns the metrics in MLflow, by name: the values by step."""
    found = {}
    for name, step, value, _ in stored_points(client, run_id):
        found.setdefault(name, {})[step] = value
    return found


SEARCHED = {"sweep/score": {0: 90.0, 1: 80.0, 2: 5.0}, "sweep/best_score": {0: 90.0, 1: 90.0, 2: 90.0, 3: 90.0}}


def test_the_run_of_a_sweep_has_its_settings_scores_and_result(client, sweep):
    page = TrackedPage(sweep, track=True)
    run = client.get_run(page.run_id)
    assert (run.info.status, run.data.tags[KIND], run.data.tags["run_uid"]) == ("RUNNING", "sweep", sweep.uid)
    assert client.get_experiment(run.info.experiment_id).name == sweep.base.experiment
    page.update([FIRST, SECOND])
    assert values(client, page.run_id) == SEARCHED
    assert (
        "**Running**: 4 trials, 2 complete, 1 failed, 1 pruned so far." in client.get_run(page.run_id).data.tags[NOTE]
    )
    finish(page, sweep)
    run = client.get_run(page.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "random"
    assert run.data.params["space.learning_rate.log_range"] == "[0.0001, 0.01]"
    assert run.data.tags[WINNER] == f"{SEEDS[1]:032x}"
    found = values(client, page.run_id)
    interval = [found.pop(f"sweep/{name}_iqm_{end}")[0] for name in ("confirmed", "base") for end in ("low", "high")]
    assert interval == [30.0, 40.0, 1.0, 2.0]
    assert found == SEARCHED | {
        "sweep/winner_score": {0: 80.0},
        "sweep/confirmed_iqm": {0: 35.0},
        "sweep/confirmed_mean": {0: 35.0},
        "sweep/base_iqm": {0: 1.5},
        "sweep/base_mean": {0: 1.5},
        "sweep/probability_of_improvement": {0: 1.0},
    }
    there = {entry.path for entry in client.list_artifacts(page.run_id)}
    assert there == {
        *("history.png", "importance.json", "parallel_coordinates.png", "result.json", "sweep.yaml"),
        *("trials.csv", "trials.json", "winner.yaml"),
    }
    assert all(f"![{name}]" in run.data.tags[NOTE] for name in ("history.png", "parallel_coordinates.png"))


def test_mlflow_reads_the_table_of_trials(client, sweep, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", embedded_tracking_uri())  # `load_table` ignores that of the client
    page = TrackedPage(sweep, track=True)
    page.update([FIRST])
    finish(page, sweep)
    experiment = client.get_run(page.run_id).info.experiment_id
    table = client.load_table(experiment, "trials.json", [page.run_id])
    assert table["trial"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert table["state"].tolist() == ["complete", "complete", "pruned", "failed", "complete", "complete", "complete"]
    assert table["learning_rate"].tolist()[:3] == [0.003, 0.002, 0.005]
    assert table["held_out"].dropna().tolist() == [1.5, 5.5, 35.0]


def test_the_csv_has_an_empty_field_for_a_setting_that_is_not_set(client, sweep):
    page = TrackedPage(sweep, track=False)
    rounds = [one_round(trial(0, {"gamma": 0.9}, 1.0, seeds=(3, 4), runs=[record(3, 0.5), record(4, 1.5)]))]
    finish(page, sweep, rounds, finished=False)
    (row,) = csv.DictReader((page.folder / "trials.csv").open())
    assert row == {
        "trial": "0",
        "phase": "search",
        "state": "complete",
        "score": "1.0",
        "held_out": "",
        "num_timesteps": "1000",
        "learning_rate": "",
        "gamma": "0.9",
        "seeds": "3, 4",
        "run_ids": f"{3:032x}, {4:032x}",
        "run_dirs": "/runs/3, /runs/4",
        "policy_sha256": ", ".join(["ab" * 32] * 2),
        "forked_from": "",
        "error": "",
    }


def test_the_winners_settings_and_the_sweep_itself_can_be_loaded(sweep):
    page = TrackedPage(sweep, track=False)
    finish(page, sweep)
    assert load_config(page.folder / "winner.yaml") == sweep.base.replace(**GOOD)
    again = load_sweep(page.folder / "sweep.yaml")
    assert (again.settings.space, again.base) == (sweep.settings.space, sweep.base)
    assert again.settings.confirmation == sweep.settings.confirmation


def test_no_secret_is_on_the_page_and_references_stay(home, sweep):
    secrets = {"token": "hush-hush", "api_key": "${env:KEY}"}
    sweep = make_sweep(overrides={"env_kwargs": secrets}, confirmation={"points": 2, "seeds": 2})
    page = TrackedPage(sweep, track=False)
    finish(page, sweep)
    texts = {path.name: path.read_bytes() for path in page.folder.iterdir()}
    assert not any(b"hush-hush" in text for text in texts.values())
    assert b"${env:KEY}" in texts["winner.yaml"]


def test_sending_the_page_again_changes_nothing(client, sweep):
    page = TrackedPage(sweep, track=True)
    page.update([FIRST])
    page.update([FIRST, SECOND])
    finish(page, sweep)
    before = client.get_run(page.run_id).to_dictionary(), stored_points(client, page.run_id)
    address = open_page(page.folder, embedded_tracking_uri())
    send_page(client, address, page.folder, {})
    assert (client.get_run(page.run_id).to_dictionary(), stored_points(client, page.run_id)) == before


def test_a_sweep_that_was_stopped_continues_in_the_same_run(client, sweep):
    page = TrackedPage(sweep, track=True)
    finish(page, sweep, [FIRST], finished=False)
    run = client.get_run(page.run_id)
    assert run.info.status == "KILLED"
    assert "The same command continues it: `rl-training sweep FILE`" in run.data.tags[NOTE]
    again = TrackedPage(sweep, track=True)
    assert (again.run_id, client.get_run(page.run_id).info.status) == (page.run_id, "RUNNING")
    finish(again, sweep)
    assert client.get_run(page.run_id).info.status == "FINISHED"


def test_the_page_of_a_sweep_that_has_failed_says_why(client, sweep):
    page = TrackedPage(sweep, track=True)
    page.update([one_round(point(0, 0.003, None, "failed"))])
    page.fail("every trial of the first round has failed")
    run = client.get_run(page.run_id)
    assert run.info.status == "FAILED"
    assert "**Failed**: 1 trial, 1 failed. every trial of the first round has failed" in run.data.tags[NOTE]


def test_a_sweep_that_continues_on_another_machine_finds_its_run(client, sweep):
    page = TrackedPage(sweep, track=True)
    for path in page.folder.iterdir():
        path.unlink()
    assert TrackedPage(sweep, track=True).run_id == page.run_id


def test_a_paused_trial_gets_its_point_when_its_score_is_final(client, sweep):
    page = TrackedPage(sweep, track=True)
    paused = one_round(point(0, 0.003, 3.0, "paused", 500), point(1, 0.002, 2.0, "paused", 500))
    page.update([paused])
    assert values(client, page.run_id) == {}
    resumed = one_round(point(0, 0.003, 4.0))
    page.update([paused, resumed])
    assert values(client, page.run_id) == {"sweep/score": {0: 4.0}, "sweep/best_score": {0: 4.0}}
    rounds = [paused, resumed]
    page.finish(rounds, make_result(sweep, rounds, finished=True))
    assert values(client, page.run_id)["sweep/score"] == {0: 4.0, 1: 2.0}


def test_the_runs_of_trials_are_found_below_the_sweep(client, sweep):
    """Those of an offline sweep are sent before or after its page, and nested when the page is sent."""
    page = TrackedPage(sweep, track=True)
    experiment = client.get_run(page.run_id).info.experiment_id
    nested = client.create_run(experiment, tags={SWEEP_UID: sweep.uid, PARENT: page.run_id}).info.run_id
    orphan = client.create_run(experiment, tags={SWEEP_UID: sweep.uid}).info.run_id
    other = client.create_run(experiment, tags={SWEEP_UID: "0" * 32}).info.run_id
    finish(page, sweep)
    children = client.search_runs([experiment], f"tags.`{PARENT}` = '{page.run_id}'")
    assert {run.info.run_id for run in children} == {nested, orphan}
    assert PARENT not in client.get_run(other).data.tags


def test_a_text_that_a_user_has_rewritten_stays(client, sweep):
    page = TrackedPage(sweep, track=True)
    client.set_tag(page.run_id, NOTE, "my own words")
    finish(page, sweep)
    assert client.get_run(page.run_id).data.tags[NOTE] == "my own words"


@pytest.fixture
def away(monkeypatch):
    """A switch: MLflow can't be reached while it is on."""
    from rl_training.sweeps.page import page_upload

    switch = {"on": False}
    real = page_upload.connect

    def connect(uri):
        if switch["on"]:
            raise ConnectionError("the server is away")
        return real(uri)

    monkeypatch.setattr(page_upload, "connect", connect)
    monkeypatch.setattr(sweep_page, "connect", connect)
    monkeypatch.setattr(sweep_page, "TRIES", 1)
    return switch


def test_the_page_is_completed_when_mlflow_is_back(client, sweep, away, caplog):
    page = TrackedPage(sweep, track=True)
    away["on"] = True
    page.update([FIRST])
    assert values(client, page.run_id) == {}
    assert "can't be sent to MLflow now: ConnectionError: the server is away" in caplog.text
    away["on"] = False
    page.update([FIRST, SECOND])
    assert values(client, page.run_id) == SEARCHED


def test_a_sweep_continues_while_mlflow_is_away(client, sweep, away, caplog):
    known = TrackedPage(sweep, track=True).run_id
    away["on"] = True
    page = TrackedPage(sweep, track=True)
    finish(page, sweep)
    assert page.run_id == known
    assert f"sync {page.folder}` sends what is missing" in caplog.text
    assert json.loads((page.folder / "result.json").read_text())["winner_params"] == GOOD
    away["on"] = False
    address = open_page(page.folder, embedded_tracking_uri())
    send_page(client, address, page.folder, {})
    assert values(client, known)["sweep/confirmed_iqm"] == {0: 35.0}
    assert client.get_run(known).info.status == "FINISHED"


def test_a_new_sweep_is_not_begun_while_mlflow_is_away(client, sweep, away):
    away["on"] = True
    with pytest.raises(TrackingError, match=r"MLflow at sqlite.* can't be used: .*away; --offline sends"):
        TrackedPage(sweep, track=True)


def test_an_untracked_sweep_has_its_files_and_no_run(client, sweep):
    page = TrackedPage(sweep, track=False)
    page.update([FIRST])
    finish(page, sweep)
    assert page.run_id is None
    assert client.search_runs([one.experiment_id for one in client.search_experiments()]) == []
    assert {"trials.json", "history.png", "winner.yaml", "page.json"} <= {p.name for p in Path(page.folder).iterdir()}


def test_sync_sends_an_offline_sweep_with_its_runs(client, sweep, capfd):
    page = TrackedPage(sweep, track=False)
    finish(page, sweep)
    run_dir = tracked_run({SWEEP_UID: sweep.uid}, run_dir=find_trial_dir(sweep.uid, "t0000-s3"))
    assert command_line(["sync", str(page.folder), "--json"]) == 0
    sent = json.loads(capfd.readouterr().out)
    assert client.get_run(sent["run_id"]).data.tags[KIND] == "sweep"
    assert values(client, sent["run_id"])["sweep/confirmed_iqm"] == {0: 35.0}
    ((name, run_id),) = [(one["run_dir"], one["run_id"]) for one in sent["runs"]]
    assert (name, client.get_run(run_id).data.tags[PARENT]) == (str(run_dir), sent["run_id"])


def test_a_link_in_the_folder_of_a_sweep_is_not_followed(client, sweep, tmp_path):
    page = TrackedPage(sweep, track=False)
    (tmp_path / "private").write_text("mine")
    (page.folder / "result.json").symlink_to(tmp_path / "private")
    run_id = sync_sweep(page.folder).run_id
    assert "result.json" not in {entry.path for entry in client.list_artifacts(run_id)}


@pytest.mark.slow
def test_a_tracked_sweep_has_its_runs_its_winner_and_their_comparison_in_mlflow(client):
    settings = {**GRID, "space": {"learning_rate": {"choice": [0.003, 0.001]}}}  # neither is the base config's
    result = run_sweep(load_sweep(settings), InProcessEngine())
    run = client.get_run(result.run_id)
    assert run.info.status == "FINISHED"
    trained = [one for trial in result.search for one in trial.runs] + [r for p in result.confirmed for r in p.runs]
    children = client.search_runs([run.info.experiment_id], f"tags.`{PARENT}` = '{result.run_id}'")
    assert sorted(child.info.run_id for child in children) == sorted(one.run_id for one in trained)
    assert sorted(child.info.run_id for child in children) == sorted(one.run_id for one in list_runs(mlflow=True))
    there = {entry.path for entry in client.list_artifacts(result.run_id)}
    assert {"comparison.html", "history.png", "parallel_coordinates.png", "trials.json", "winner.yaml"} <= there
    best = max(result.winner.runs, key=lambda one: one.held_out)
    assert run.data.tags[WINNER] == best.run_id
    assert download_checkpoint(best.run_id, wanted="policy").policy_sha256 == best.policy_sha256
    assert load_config(Path(result.folder) / "winner.yaml") == load_sweep(settings).base.replace(**result.winner_params)
