"""The embedded Prefect server: starts made at once, and every way in which its owner can end."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

OWNER = """
import sys, time
from flows.server import embedded_server

with embedded_server() as url:
    from prefect import flow

    @flow(name="waiting")
    def waiting(seconds: float) -> str:
        print("running", url, flush=True)
        time.sleep(seconds)
        return "slept"

    print(waiting(float(sys.argv[1])), flush=True)
"""


@pytest.fixture(scope="module")
def started_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose database was made by two first starts at once, both of which ran a flow."""
    home = tmp_path_factory.mktemp("home")
    owners = [start_owner(home, seconds=0.0) for _ in range(2)]
    for owner in owners:
        out, err = owner.communicate(timeout=240)
        assert owner.returncode == 0, err
        assert out.splitlines()[-1] == "slept"
        assert "the first time takes about a minute" in err
    return home


def start_owner(home: Path, *, seconds: float) -> subprocess.Popen[str]:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    settings |= {"RL_TRAINING_HOME": str(home), "PYTHONPATH": str(REPOSITORY), "HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(seconds)],
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], *, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def server_of(owner: subprocess.Popen[str]) -> psutil.Process:
    """The server's process, once the owner says that its flow runs."""
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith("running http://127.0.0.1:")
    (server,) = psutil.Process(owner.pid).children()
    return server


def may_read(server: psutil.Process, page: str) -> bool:
    """Whether a browser would let a page of this address read the server's answers."""
    (port,) = {connection.laddr.port for connection in server.net_connections("tcp") if connection.status == "LISTEN"}
    origin = page.format(port=port)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/health", headers={"Origin": origin})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers.get("Access-Control-Allow-Origin") in (origin, "*")


def flow_states(home: Path) -> list[str]:
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        return [state for (state,) in database.execute("select state_type from flow_run order by created")]


def test_two_first_starts_at_once_share_one_whole_database(started_home: Path) -> None:
    assert flow_states(started_home) == ["COMPLETED", "COMPLETED"]
    assert not list((started_home / "prefect").glob("prefect.new*"))


def test_server_ends_when_its_owner_is_killed_and_the_next_start_says_how_the_flow_run_ended(
    started_home: Path,
) -> None:
    before = len(flow_states(started_home))
    owner, living = (start_owner(started_home, seconds=120.0) for _ in range(2))
    server, _ = server_of(owner), server_of(living)
    assert may_read(server, "http://127.0.0.1:{port}")
    assert may_read(server, "http://localhost:{port}")
    assert not may_read(server, "http://127.0.0.1")
    assert not may_read(server, "http://example.org")
    try:
        owner.kill()
        owner.communicate(timeout=10)
        assert wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
        assert flow_states(started_home)[before:] == ["RUNNING", "RUNNING"]
        again = start_owner(started_home, seconds=0.0)
        out, err = again.communicate(timeout=60)
        assert out.splitlines()[-1] == "slept", err
        # The other one's process is alive, though its server is not the one that was asked.
        assert sorted(flow_states(started_home)[before:]) == ["COMPLETED", "CRASHED", "RUNNING"]
    finally:
        os.killpg(living.pid, signal.SIGTERM)
        living.communicate(timeout=20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_owner_ends_both_and_is_recorded(started_home: Path, number: signal.Signals) -> None:
    before = len(flow_states(started_home))
    owner = start_owner(started_home, seconds=60.0)
    server = server_of(owner)
    started = time.monotonic()
    os.killpg(owner.pid, number)  # as a terminal does: to the whole group, which the server is not in
    owner.communicate(timeout=20)
    assert time.monotonic() - started < 10.0
    assert wait_for(lambda: not server.is_running())
    assert flow_states(started_home)[before:] == ["CRASHED"]


def test_a_first_start_cut_short_leaves_nothing_behind_and_the_next_one_works(tmp_path: Path) -> None:
    owner = start_owner(tmp_path, seconds=0.0)
    unfinished = tmp_path / "prefect" / "prefect.new"
    assert wait_for(unfinished.exists, seconds=120)  # the migration is under way
    family = psutil.Process(owner.pid).children(recursive=True)
    assert len(family) >= 2  # the server, and its migration
    owner.kill()
    owner.communicate(timeout=10)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert not (tmp_path / "prefect" / "prefect.db").exists()

    again = start_owner(tmp_path, seconds=0.0)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert out.splitlines()[-1] == "slept"
    assert flow_states(tmp_path) == ["COMPLETED"]


def test_a_server_that_can_not_start_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.server import EmbeddedServer
    from rl_training.errors import UserError

    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    database = tmp_path / "prefect" / "prefect.db"
    database.parent.mkdir()
    database.write_text("this is no database")
    server = EmbeddedServer()
    try:
        with pytest.raises(UserError, match="embedded Prefect server ended at its start") as caught:
            server.wait_until_ready()
    finally:
        server.stop()
    assert str(server.log_file) in str(caught.value)
    assert "file is not a database" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_machine_without_loopback_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import flows.server
    from rl_training.errors import UserError

    def unreachable(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    monkeypatch.setattr(flows.server, "create_connection", unreachable)
    with pytest.raises(UserError, match=r"127\.0\.0\.1 can't be reached \(Network is unreachable\)"):
        flows.server.EmbeddedServer()


IMPORTED = """
import os
from flows.server import before_import

with before_import():
    from prefect.settings import PREFECT_HOME

    print(PREFECT_HOME.value(), os.environ["DO_NOT_TRACK"])
print(os.environ.get("DO_NOT_TRACK"))
"""


@pytest.mark.parametrize("set_up", [False, True])
def test_prefect_keeps_to_our_home_unless_the_user_has_set_it_up(set_up: bool, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    if set_up:
        (tmp_path / "theirs" / ".prefect").mkdir()
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DO_NOT"))}
    settings |= {"HOME": str(tmp_path / "theirs"), "RL_TRAINING_HOME": str(tmp_path / "ours")}
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, env=settings, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    home = tmp_path / ("theirs/.prefect" if set_up else "ours/prefect")
    assert done.stdout.splitlines() == [f"{home} 1", "None"]
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == [".prefect"] * set_up


def test_the_users_own_server_is_used_and_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.server import embedded_server
    from rl_training.errors import UserError

    with (
        temporary_settings(updates={PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(UserError, match=r"Prefect server at http://127\.0\.0\.1:9/api does not answer"),
        embedded_server(),
    ):
        raise AssertionError("the block must not run")
