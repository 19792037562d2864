"""`rl-training clean` removes what nothing needs, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException
from mlflow_server import Server
from mlflow_store import GOOD, NETWORK, make_run, ship_all, tracked_run, write_policy

from rl_training import run_layout
from rl_training.cli.app import run as run_command
from rl_training.errors import UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.maintenance.ages import read_age
from rl_training.maintenance.clean import Cleaning, find_removable, remove_items
from rl_training.maintenance.flow_runs import find_flow_runs
from rl_training.maintenance.items import Item
from rl_training.promotion.model_registry import get_or_register
from rl_training.runs.locks import RunLock
from rl_training.sweeps.segments import find_sweep_dir
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.mlflow_names import SWEEP_UID
from rl_training.tracking.mlflow_store import connect
from rl_training.tracking.shipping.uploads import list_pending_artifacts

MONTH = timedelta(days=30)
ENDS = {
    "complete": ("FINISHED", "completed"),
    "stopped": ("KILLED", "signal"),
    "paused": ("FINISHED", "paused"),
    "killed": ("KILLED", "killed"),
    "failed": ("FAILED", "failed"),
    "training": None,
}
OF_LONG_AGO = {"end": "complete", "old": True, "sent": True, "deleted": False, "registered": False, "in_sweep": False}
"""A run that nothing needs."""
CHANGES = [*({"end": end} for end in ENDS), {"old": False}, {"sent": False}, {"registered": True}, {"in_sweep": True}]
CHANGES += [{"deleted": True}] * 3
RUNS = st.lists(st.sampled_from(CHANGES), max_size=2).map(
    lambda changes: {**OF_LONG_AGO, **{key: value for change in changes for key, value in change.items()}}
)


def make(home: Path, client: Any, facts: dict[str, Any], locks: ExitStack) -> tuple[Path, str]:
    """Makes a run with one checkpoint in the given state; returns its directory and its MLflow run."""
    uid = os.urandom(16).hex()
    run_dir = tracked_run({SWEEP_UID: uid} if facts["in_sweep"] else None, network=NETWORK)
    if facts["in_sweep"]:
        find_sweep_dir(uid).mkdir(parents=True)
    checkpoint = write_policy(run_dir, 100, GOOD)
    log = MetricLog(run_dir)
    log.log(100, {"eval/return_mean": 500.0}, "eval")
    if ENDS[facts["end"]] is not None:
        json_files.write_status(run_dir, *ENDS[facts["end"]], None)
        sent = ship_all(run_dir, lambda: json_files.read_json(run_dir / run_layout.STATUS))
    else:
        sent = ship_all(run_dir)
    run_id, uri = sent.address.run_id, f"sqlite:///{home}/mlflow.db"
    if not facts["sent"]:
        log.log(200, {"eval/return_mean": 400.0}, "eval")
    log.close()
    if facts["registered"]:
        get_or_register(client, uri, "plain", checkpoint, config_of_checkpoint(checkpoint), run_id)
    if facts["deleted"]:
        client.delete_run(run_id)
    if ENDS[facts["end"]] is None:
        locks.enter_context(RunLock(run_dir))
    if facts["old"]:
        age(home, run_dir, run_id)
    return run_dir, run_id


def age(home: Path, run_dir: Path, run_id: str) -> None:
    """Makes a run look as if nobody had touched it for two months."""
    before = time.time() - 60 * 86_400
    for path in run_dir.rglob("*"):
        os.utime(path, (before, before))
    if (shipped := json_files.read_json(run_dir / run_layout.SHIPPED)) is not None:
        marks = dict(list_pending_artifacts(run_dir, {}))  # they contain the time
        json_files.write_json(run_dir / run_layout.SHIPPED, {**shipped, "artifacts": marks})
        os.utime(run_dir / run_layout.SHIPPED, (before, before))
    with sqlite3.connect(home / "mlflow.db") as database:
        change = "UPDATE runs SET deleted_time = ? WHERE run_uuid = ? AND lifecycle_stage = 'deleted'"
        database.execute(change, (round(before * 1000), run_id))
    database.close()


def is_needed(facts: dict[str, Any]) -> bool:
    """The rule, written down a second time: whether the directory of a run must stay."""
    incomplete = facts["end"] != "complete"
    return incomplete or facts["registered"] or facts["in_sweep"] or not facts["sent"] or not facts["old"]


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs=st.lists(RUNS, min_size=1, max_size=3))
def test_whatever_the_state_what_is_needed_stays(
    runs: list[dict[str, Any]], store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as locks:
        home = tmp_path_factory.mktemp("cleaned")
        patch.setenv("RL_TRAINING_HOME", str(home))
        shutil.copy(store_template, home / "mlflow.db")
        client = connect(f"sqlite:///{home}/mlflow.db")
        made = [(facts, *make(home, client, facts, locks)) for facts in runs]
        shown = find_removable(MONTH)
        assert all(run_dir.exists() for _, run_dir, _ in made)
        done = remove_items(shown)
        assert [item.name for item in done.items] == [item.name for item in shown.items]
        for facts, run_dir, run_id in made:
            assert run_dir.exists() == is_needed(facts)
            left = {run.info.run_id for run in client.search_runs(["1"], run_view_type=3)}
            assert (run_id in left) == (is_needed(facts) or not facts["deleted"])
            if facts["registered"]:
                key = next(v for v in client.search_model_versions("name = 'plain'") if v.run_id == run_id)
                assert download_checkpoint(f"models:/plain/{key.version}", wanted="policy").num_timesteps == 100
            if run_id in left:
                found = download_checkpoint(f"runs:/{run_id}/checkpoints/step_000000000100")
                assert found.num_timesteps == 100
        assert find_removable(MONTH).items == []


def test_the_command_says_how_much_of_what_and_asks(home: Path, client: Any, capfd: Any) -> None:
    with ExitStack() as locks:
        complete, _ = make(home, client, OF_LONG_AGO, locks)
        stopped, _ = make(home, client, {**OF_LONG_AGO, "end": "stopped"}, locks)
        deleted, run_id = make(home, client, {**OF_LONG_AGO, "deleted": True}, locks)
    artifacts = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    assert artifacts.exists()
    assert run_command(["clean", "--older-than", "30d", "--dry-run", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert {(item["kind"], item["name"]) for item in shown["removable"]} == {
        ("run directory", str(complete)),
        ("run directory", str(deleted)),
        ("deleted run", run_id),
    }
    assert shown["kept"] == {"run directory: it can be resumed": 1}
    assert shown["bytes"] == sum(item["bytes"] for item in shown["removable"]) > 10_000

    assert run_command(["clean", "--older-than", "30d"]) == 2  # nobody is there to answer
    assert "use --yes" in capfd.readouterr().err
    assert complete.exists()
    assert run_command(["clean", "--older-than", "30d", "--yes"]) == 0
    assert "removed: 2 x run directory" in capfd.readouterr().out
    assert [path.exists() for path in (complete, stopped, deleted, artifacts)] == [False, True, False, False]


def test_a_run_that_is_used_meanwhile_stays(home: Path, client: Any) -> None:
    with ExitStack() as locks:
        resumed, _ = make(home, client, OF_LONG_AGO, locks)
        registered, run_id = make(home, client, OF_LONG_AGO, locks)
        found = find_removable(MONTH)
        assert len(found.items) == 2
        locks.enter_context(RunLock(resumed))
        checkpoint = download_checkpoint(str(registered))
        config = config_of_checkpoint(checkpoint)
        get_or_register(client, f"sqlite:///{home}/mlflow.db", "plain", checkpoint, config, run_id)
        assert remove_items(found).items == []
    assert resumed.exists()
    assert registered.exists()


def test_an_interrupted_cleaning_is_completed_by_the_next(home: Path, client: Any) -> None:
    with ExitStack() as locks:
        run_dir, _ = make(home, client, OF_LONG_AGO, locks)
    left = run_dir.with_name(f".removed-{run_dir.name}")
    run_dir.rename(left)
    assert [item.name for item in remove_items(find_removable(MONTH)).items] == [str(left)]
    assert not left.exists()


def test_an_untracked_run_stays_because_its_directory_is_its_only_record(home: Path) -> None:
    run_dir, _ = make_run()
    age(home, run_dir, "")
    found = find_removable(MONTH)
    assert found.items == []
    assert run_dir.exists()


def test_artifacts_outside_of_the_runs_own_folder_stay(home: Path, client: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with ExitStack() as locks:
        run_dir, run_id = make(home, client, {**OF_LONG_AGO, "deleted": True}, locks)
    with sqlite3.connect(home / "mlflow.db") as database:
        database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (elsewhere.as_uri(), run_id))
    database.close()
    found = find_removable(MONTH)
    assert found.kept == {"deleted run: its artifacts are in an unexpected place": 1}
    remove_items(found)
    assert elsewhere.exists()
    assert not run_dir.exists()


@pytest.mark.slow
def test_deleted_runs_of_a_server_go_where_its_database_is(
    home: Path, tmp_path: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, note = tmp_path / "server", tmp_path / "note.txt"
    folder.mkdir()
    shutil.copy(store_template, folder / "mlflow.db")
    note.write_text("twelve bytes")
    server = Server(folder)
    server.start()
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        client = connect(server.uri)
        experiment = client.create_experiment("tried")
        gone, champion, kept = (client.create_run(experiment).info.run_id for _ in range(3))
        client.create_registered_model("plain")
        client.create_model_version("plain", f"runs:/{champion}/files", champion)
        for run_id in (gone, champion, kept):
            client.log_artifact(run_id, str(note), "files")
            client.set_terminated(run_id)
            client.delete_run(run_id)
        with sqlite3.connect(folder / "mlflow.db") as database:
            before = round((time.time() - 60 * 86_400) * 1000)
            change = "UPDATE runs SET deleted_time = ? WHERE run_uuid != ?"
            database.execute(change, (before, kept))
        database.close()

        found = find_removable(MONTH)
        assert found.items == []
        assert "only where MLFLOW_BACKEND_STORE_URI names its database" in found.notes[0]

        (tmp_path / "other.db").touch()
        monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", f"sqlite:///{tmp_path}/other.db")
        with pytest.raises(UserError, match=f"expected the database of the MLflow server at {server.uri}"):
            find_removable(MONTH)
        assert (tmp_path / "other.db").stat().st_size == 0

        monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", f"sqlite:///{folder}/mlflow.db")
        found = find_removable(MONTH)
        assert [(item.kind, item.name, item.size) for item in found.items] == [("deleted run", gone, 12)]
        assert found.kept == {"deleted run: a registered version comes from it": 1}
        remove_items(found)
        assert not list(folder.glob(f"served/*/{gone}/**/*.txt"))
        assert [len(list(folder.glob(f"served/*/{run}/**/note.txt"))) for run in (champion, kept)] == [1, 1]
        with pytest.raises(MlflowException, match="not found"):
            client.get_run(gone)
    finally:
        server.stop()


@pytest.mark.parametrize(("text", "age"), [("30d", timedelta(days=30)), ("12h", timedelta(hours=12))])
def test_an_age_is_read(text: str, age: timedelta) -> None:
    assert read_age(text) == age


@pytest.mark.parametrize("text", ["30", "d", "1.5d", "-1d", "99999999999d"])
def test_a_wrong_age_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected"):
        read_age(text)


@pytest.mark.parametrize("given", [["--older-than", "-5d"], ["--older-than=-5d"]])
def test_the_command_says_what_an_age_is(given: list[str], home: Path, capfd: Any) -> None:
    assert run_command(["clean", *given]) == 2
    assert "got the age '-5d', expected a number of days or hours such as 30d" in capfd.readouterr().err


def test_what_has_no_size_is_shown_without_one() -> None:
    items = [
        Item("flow run", "66733160", None, lambda: None, "train-flow/brave-cat, ended 2026-01-02 03:04 UTC"),
        Item("run directory", "/runs/a", 3_000, lambda: None),
    ]
    shown = Cleaning(items, {}, [], done=False)
    assert shown.lines() == [
        "can be removed: flow run 66733160 (train-flow/brave-cat, ended 2026-01-02 03:04 UTC)",
        "can be removed: run directory /runs/a, 3,000 bytes",
        "can be removed: 1 x flow run",
        "can be removed: 1 x run directory, 3,000 bytes",
    ]
    assert [item["bytes"] for item in shown.to_dict()["removable"]] == [None, 3_000]
    assert shown.to_dict()["bytes"] == 3_000


@pytest.mark.slow
def test_old_flow_runs_of_the_embedded_server_go(
    home: Path, prefect_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import Completed, Running

    from rl_training.services.embedded_server import provide_server

    @flow
    def nothing() -> None: ...

    shutil.copytree(prefect_template, home / "prefect", dirs_exist_ok=True)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        with provide_server(), get_client(sync_client=True) as client:
            running, ended = (client.create_flow_run(nothing) for _ in range(2))
            for run in (running, ended):
                client.set_flow_run_state(run.id, Running(), force=True)
            client.set_flow_run_state(ended.id, Completed(), force=True)
        assert find_removable(MONTH).items == []
        found = find_removable(timedelta())
        assert [(item.kind, item.name) for item in found.items] == [("flow run", str(ended.id))]
        remove_items(found)
        with provide_server(), get_client(sync_client=True) as client:
            assert [run.id for run in client.read_flow_runs()] == [running.id]


@pytest.mark.slow
def test_old_flow_runs_of_our_deployments_go(flow_home: Path) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Completed, Failed, Running

    @flow
    def nothing() -> None: ...

    with get_client(sync_client=True) as client:

        def ended(state: Any, tags: list[str]) -> Any:
            run = client.create_flow_run(nothing, tags=tags)
            client.set_flow_run_state(run.id, Running(), force=True)
            client.set_flow_run_state(run.id, state, force=True)
            return run.id

        complete, failed = ended(Completed(), ["rl-training"]), ended(Failed(), ["rl-training"])
        others = ended(Completed(), ["others"])
        running = client.create_flow_run(nothing, tags=["rl-training"]).id
        young = find_flow_runs(timedelta(hours=1), set())
        assert not {str(complete), str(failed)} & {item.name for item in young.items}

        found = find_flow_runs(timedelta(), {str(failed)})
        shown = next(item for item in found.items if item.name == str(complete))
        ended_run = client.read_flow_run(complete)
        assert ended_run.end_time is not None
        assert shown.description == f"nothing/{ended_run.name}, ended {ended_run.end_time:%Y-%m-%d %H:%M} UTC"
        assert not {str(failed), str(others), str(running)} & {item.name for item in found.items}
        assert found.kept == {"flow run: a retry resumes their training": 1}
        shown.remove()
        with pytest.raises(ObjectNotFound):
            client.read_flow_run(complete)
        assert [client.read_flow_run(run_id).id for run_id in (failed, others, running)] == [failed, others, running]
