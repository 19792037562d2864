"""The study database: what it keeps, and that one process at a time changes a sweep."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from rl_training.errors import AlreadyTraining, ReceivedError, UserError
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.plan import Fork, RunRecord, Step
from rl_training.sweeps.segments import from_text, to_text
from rl_training.sweeps.study import database as database_module
from rl_training.sweeps.study.database import Database, StudyLost
from rl_training.sweeps.study.lease import Lease, SweepTakenOver
from rl_training.sweeps.study.rounds import require_planned
from rl_training.sweeps.study.study import StoredRound, Study, begin_sweep
from rl_training.sweeps.study.tables import RUNS, SWEEPS
from tests.sweep_segments import PPO

UID, DIGEST = "a" * 32, "d" * 64
STEPS = (
    Step(0, {"learning_rate": 0.1 + 0.2, "network.hidden": [64, 64]}, (0, 2**40), 100),
    Step(1, {}, (0,), 100, fork=Fork(0, 50), prune_below={50: -1 / 3}),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A new database with one sweep."""
    database = Database(f"sqlite:///{tmp_path}/studies.db")
    begin_sweep(database, UID, "sweep", DIGEST)
    yield database
    database.close()


def make_record(seed: int, held_out: float = 1 / 3) -> RunRecord:
    """Returns the record of a run."""
    return RunRecord(seed, "u", None, "/d", "complete", 100, {50: -1.5, 100: 1 / 3}, "f" * 64, held_out)


def set_holder(database: Database, **values: Any) -> None:
    """Changes the row of the sweep."""
    database.change(lambda connection: connection.execute(update(SWEEPS).values(**values)))


def test_rounds_and_records_are_read_back_as_they_were_written(database: Database) -> None:
    with Lease(database, UID).hold() as lease:
        study = Study(database, lease)
        assert study.load_rounds() == []
        assert study.begin_round(0, STEPS).steps == STEPS
        study.write_record(0, 0, make_record(2**40))
        (stored,) = study.load_rounds()
        assert stored.steps == STEPS
        assert stored.records == {(0, 2**40): make_record(2**40)}
        assert not stored.is_complete
        study.write_record(0, 0, make_record(0))
        study.write_record(0, 1, make_record(0))
        assert study.load_rounds()[0].is_complete


def test_a_change_that_is_made_twice_has_the_effect_of_one(database: Database) -> None:
    with Lease(database, UID).hold() as lease:
        study = Study(database, lease)
        for _ in range(2):
            study.begin_round(0, STEPS)
            study.write_record(0, 1, make_record(0))
        study.write_record(0, 1, make_record(0, held_out=7.0))  # a first record stays
        (stored,) = study.load_rounds()
        assert stored.records == {(1, 0): make_record(0)}


def test_an_unfinished_sweep_with_the_same_settings_is_found(database: Database) -> None:
    assert begin_sweep(database, "b" * 32, "sweep", DIGEST) == UID
    assert begin_sweep(database, "b" * 32, "sweep", "e" * 64) == "b" * 32
    assert begin_sweep(database, "c" * 32, "sweep", DIGEST, new=True) == "c" * 32
    with Lease(database, "c" * 32).hold() as lease:
        Study(database, lease).finish()
    assert begin_sweep(database, "d" * 32, "sweep", DIGEST) == UID


def test_a_process_that_lost_its_lease_writes_nothing(database: Database) -> None:
    lost = threading.Event()
    with Lease(database, UID, seconds=0.2).hold(lost.set) as lease:
        study = Study(database, lease)
        study.begin_round(0, STEPS)
        set_holder(database, holder="e" * 32, holder_pid=7, holder_host="far-away")
        with pytest.raises(SweepTakenOver, match="process 7 on far-away"):
            study.write_record(0, 1, make_record(0))
        assert lost.wait(60)
        assert study.load_rounds()[0].records == {}
    row = database.change(lambda connection: connection.execute(SWEEPS.select()).one())
    assert row.holder == "e" * 32


def test_the_lease_of_a_living_process_here_is_refused_at_once(database: Database) -> None:
    with (
        Lease(database, UID).hold(),
        pytest.raises(AlreadyTraining, match=f"process {os.getpid()} on {socket.gethostname()} since 2"),
        Lease(database, UID).hold(),
    ):
        pytest.fail("two processes hold the lease")
    with Lease(database, UID).hold():
        pass


def test_the_lease_of_a_process_that_is_gone_is_taken_at_once(database: Database) -> None:
    values = {"holder": "e" * 32, "holder_host": socket.gethostname(), "held_since": 0.0, "renewed": 9e9}
    set_holder(database, **values, holder_pid=2**22 + 1, holder_created=0.0)  # no such process
    with Lease(database, UID).hold():
        pass
    set_holder(database, **values, holder_pid=os.getpid(), holder_created=0.0)  # another process had this id
    with Lease(database, UID).hold():
        pass


def test_a_lease_elsewhere_that_is_renewed_is_refused_and_one_that_is_not_is_taken(database: Database) -> None:
    elsewhere = {"holder": "e" * 32, "holder_host": "far-away", "holder_pid": 7, "held_since": 0.0}
    set_holder(database, **elsewhere, renewed=database.now)
    with Lease(database, UID, seconds=0.3).hold():  # waits until it has ended
        pass
    set_holder(database, **elsewhere, renewed=database.now)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.05):
            set_holder(database, renewed=database.now)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(AlreadyTraining, match="process 7 on far-away"), Lease(database, UID).hold():
            pytest.fail("two processes hold the lease")
    finally:
        over.set()
        thread.join()


def test_a_change_waits_for_another_process_that_holds_the_database(database: Database, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "studies.db", isolation_level=None, check_same_thread=False)
    with Lease(database, UID).hold() as lease:
        study = Study(database, lease)
        study.begin_round(0, STEPS)
        other.execute("BEGIN EXCLUSIVE")
        timer = threading.Timer(0.5, other.execute, ["COMMIT"])
        timer.start()
        study.write_record(0, 1, make_record(0))
        timer.join()
        assert study.load_rounds()[0].records == {(1, 0): make_record(0)}
    other.close()


def test_a_change_is_made_again_when_its_connection_is_lost_before_or_after_the_commit(database: Database) -> None:
    calls: list[str] = []

    def lose(connection: Any) -> str:
        calls.append("call")
        if len(calls) == 1:
            raise OperationalError("COMMIT", None, Exception("server closed the connection unexpectedly"))
        return "done"

    assert database.change(lose) == "done"
    assert len(calls) == 2


def test_a_database_that_stays_away_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg2")
    monkeypatch.setattr(database_module, "OPEN_SECONDS", 0.3)
    with pytest.raises(UserError, match="postgresql") as caught:
        Database("postgresql://me:geheim@127.0.0.1:9/studies")
    assert "geheim" not in str(caught.value)
    assert "me:***@127.0.0.1:9" in str(caught.value)


def test_a_closed_database_ends_the_wait_of_a_change(database: Database) -> None:
    def lose(connection: Any) -> None:
        database.close()
        raise OperationalError("SELECT", None, Exception("the database is locked"))

    with pytest.raises(StudyLost):
        database.change(lose)


def test_a_file_that_is_no_database_of_this_version_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"no database" * 1_000)
    (tmp_path / "folder.db").mkdir()
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table rl_training_sweeps (uid text primary key)")
    for name, reason in [("damaged", "not a database"), ("folder", "unable to open"), ("other", "no such column")]:
        with pytest.raises(UserError, match=rf"{name}.db can't be used: .*{reason}.*; move the file away") as caught:
            Database(f"sqlite:///{tmp_path}/{name}.db")
        assert "\n" not in str(caught.value)


def test_a_full_disk_ends_a_change_at_once(database: Database) -> None:
    def fill(connection: Any) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.exec_driver_sql("create table big as select randomblob(100000)")

    with pytest.raises(StudyLost, match="can't be used: database or disk is full"):
        database.change(fill)


@pytest.mark.parametrize("uri", ["mysql://x/y", "no address"])
def test_other_databases_are_refused(uri: str) -> None:
    with pytest.raises(UserError, match="expected"):
        Database(uri)


def test_a_damaged_record_is_refused_in_one_line(database: Database) -> None:
    with Lease(database, UID).hold() as lease:
        study = Study(database, lease)
        study.begin_round(0, STEPS)
        study.write_record(0, 1, make_record(0))
        database.change(lambda connection: connection.execute(update(RUNS).values(record='{"seed": "x"}')))
        with pytest.raises(ReceivedError, match=f"sweep {UID} in sqlite.* is damaged: seed"):
            study.load_rounds()


def test_the_file_is_readable_by_its_owner_alone(database: Database, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "studies.db").stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    "step",
    [
        Step(0, {"callbacks": ["some_module:Callback"]}, (0,), 100),
        Step(0, {"learning_rate": 0.5}, (0,), 100),
        Step(0, {"learning_rate": True}, (0,), 100),
        Step(0, {"network.hidden": [65]}, (0,), 100),
        Step(0, {}, (0,), 100, fork=Fork(0, 50)),
        Step(0, {}, (0,), 100, fork=Fork(7, 50)),
    ],
    ids=["a module", "outside of the range", "no number", "no choice", "a fork of itself", "a fork of nothing"],
)
def test_steps_that_the_sweep_can_not_have_planned_are_refused(step: Step) -> None:
    space = {"learning_rate": {"log_range": [1e-4, 0.1]}, "network.hidden": {"choice": [[64], [64, 64]]}}
    sweep = load_sweep({"config": PPO, "space": space, "method": "random"})
    sound = (Step(0, {"learning_rate": 0.1, "network.hidden": [64]}, (0,), 50), Step(1, {}, (0,), 50))
    require_planned(sweep, [StoredRound(sound, {}), StoredRound((Step(1, {}, (0,), 100, fork=Fork(0, 50)),), {})])
    with pytest.raises(ReceivedError, match=r"damaged: trial 0 .*; begin another sweep with --new"):
        require_planned(sweep, [StoredRound((step,), {})])


@pytest.mark.parametrize(
    ("part", "other"),
    [("-1.5", "1e999"), ('"summary": null', '"summary": {"a": ' + "[" * 400 + "]" * 400 + "}")],
    ids=["infinite", "deep"],
)
def test_a_record_that_could_not_be_written_again_is_refused(part: str, other: str) -> None:
    sound = to_text(make_record(0))
    assert from_text(sound, RunRecord) == make_record(0)
    assert part in sound
    with pytest.raises(NotReadable):
        from_text(sound.replace(part, other), RunRecord)
