"""A sweep whose study is in PostgreSQL, and whose connections are cut."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Connection

from benchmarks.sweeps.struck_sweep import Strike, StruckSweep, list_table
from benchmarks.sweeps.study_server import StudyServer
from rl_training.errors import AlreadyTraining
from rl_training.sweeps.plan import RunRecord, Step
from rl_training.sweeps.study.database import Database
from rl_training.sweeps.study.lease import Lease
from rl_training.sweeps.study.study import Study, begin_sweep
from tests.sweep_runs import RANDOM

pytestmark = pytest.mark.services

UID = "a" * 32


@pytest.fixture(scope="module")
def server() -> Iterator[StudyServer]:
    """A server of study databases, in a folder that its user may enter: pytest closes its own to other users."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = StudyServer(Path(folder) / "server")
        yield server
        server.stop()


def test_changes_survive_connections_that_are_cut_before_and_after_their_commit(server: StudyServer) -> None:
    database = Database(server.uri)
    begin_sweep(database, UID, "sweep", "d" * 64)
    record = RunRecord(0, "u", None, "/d", "complete", 100, {100: 1 / 3}, "f" * 64)
    with Lease(database, UID).hold() as lease:
        study = Study(database, lease)
        study.begin_round(0, [Step(0, {"gamma": 0.1 + 0.2}, (0, 1), 100)])
        server.cut_connections()  # the next change finds a dead connection
        study.write_record(0, 0, record)
        calls: list[int] = []

        def cut_in_the_middle(connection: Connection) -> None:
            lease.require(connection)
            calls.append(1)
            if len(calls) == 1:
                server.cut_connections()

        database.change(cut_in_the_middle)
        assert len(calls) == 2
        (stored,) = study.load_rounds()
        assert stored.records == {(0, 0): record}
        assert stored.steps[0].params == {"gamma": 0.1 + 0.2}
    assert server.password not in database.address
    database.close()


def test_a_lease_in_postgresql_is_held_by_one_process(server: StudyServer) -> None:
    database = Database(server.uri)
    begin_sweep(database, "b" * 32, "sweep", "e" * 64)
    refused = pytest.raises(AlreadyTraining)
    with Lease(database, "b" * 32).hold(), refused, Lease(database, "b" * 32).hold():
        pytest.fail("two processes hold the lease")
    database.close()


def test_a_sweep_whose_connections_are_cut_ends_with_the_same_table(server: StudyServer, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({**RANDOM, "trials": 4}))
    expected = list_table(StruckSweep(file, tmp_path / "undisturbed", options=["--no-track"]).run([]))
    struck = StruckSweep(file, tmp_path / "struck", server, ["--no-track"])
    strikes = [Strike("trial", 0.0), *[Strike("connection", 1.0)] * 5, Strike("driver", 1.0), Strike("connection", 3.0)]
    assert list_table(struck.run(strikes)) == expected
    assert "connection" in struck.struck
    assert server.password not in struck.log
