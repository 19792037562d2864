"""The embedded Prefect server: simultaneous starts, and every way in which its owner can end."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import psutil
import pytest
from waiting import LIMIT, wait_for
from websockets import ConnectionClosed, InvalidStatus, Subprotocol
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

PREFECT = Subprotocol("prefect")
REPOSITORY = Path(__file__).resolve().parents[1]

OWNER = """
import os, sys, time
from rl_training.services.embedded_server import provide_server

with provide_server() as url:
    from prefect import flow, get_run_logger
    from prefect.events import emit_event

    @flow(name="waiting")
    def waiting(seconds: float) -> str:
        print("running", url, os.environ.get("PREFECT_API_AUTH_STRING"), flush=True)
        get_run_logger().info("a line")
        emit_event("a.test", resource={"prefect.resource.id": "test"})
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
        out, err = owner.communicate(timeout=LIMIT)
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


def server_of(owner: subprocess.Popen[str]) -> psutil.Process:
    """The server's process, once the owner says that its flow runs."""
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith("running http://127.0.0.1:")
    (server,) = psutil.Process(owner.pid).children()
    return server


def ask(
    port: int, method: str, path: str, headers: dict[str, str], password: str = "", body: str = ""
) -> tuple[int, bytes]:
    """The status and the content with which a server on this machine answers."""
    if password:
        headers = {**headers, "Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def flow_states(home: Path) -> list[str]:
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        return [state for (state,) in database.execute("select state_type from flow_run order by created")]


def rows(home: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        return database.execute(query).fetchall()


def test_two_first_starts_at_once_share_one_complete_database(started_home: Path) -> None:
    assert flow_states(started_home) == ["COMPLETED", "COMPLETED"]
    assert not list((started_home / "prefect").glob("prefect.new*"))


def test_what_flows_log_and_emit_arrives(started_home: Path) -> None:
    assert rows(started_home, "select count(*) from log where message = 'a line'") == [(2,)]
    assert rows(started_home, "select count(*) from events where event = 'a.test'") == [(2,)]


@pytest.fixture(scope="module")
def living(started_home: Path) -> Iterator[tuple[int, str]]:
    """The port of an embedded server while a flow runs, and its password."""
    owner = start_owner(started_home, seconds=600.0)
    assert owner.stdout is not None
    _, url, password = owner.stdout.readline().split()
    yield int(url.removesuffix("/api").rpartition(":")[2]), password
    os.killpg(owner.pid, signal.SIGTERM)
    owner.communicate(timeout=LIMIT)


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "knows_password", "status", "content"),
    [
        ({"Host": "evil.example"}, True, 403, b""),
        ({"Host": "evil.example:{port}"}, True, 403, b""),
        ({"Origin": "http://evil.example"}, True, 403, b""),
        ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, True, 403, b""),
        ({"Origin": "http://127.0.0.1:1", **JSON}, True, 403, b""),
        ({"Origin": "null", **JSON}, True, 403, b""),
        (JSON, False, 401, b'{"exception_message":"Unauthorized"}'),
        ({"Authorization": "Basic b3duZXI6", **JSON}, False, 401, b'{"exception_message":"Unauthorized"}'),
    ],
)
def test_other_sites_and_other_users_create_nothing(
    headers: dict[str, str],
    knows_password: bool,
    status: int,
    content: bytes,
    living: tuple[int, str],
    started_home: Path,
) -> None:
    port, password = living
    sent = {name: value.format(port=port) for name, value in headers.items()}
    own = {"password": password} if knows_password else {}
    assert ask(port, "POST", "/api/flows/", sent, body='{"name": "theirs"}', **own) == (status, content)
    assert rows(started_home, "select name from flow where name = 'theirs'") == []
    assert ask(port, "GET", "/api/flows/count", sent, **own) == (status, content)


def test_the_owner_and_the_servers_own_pages_are_served(living: tuple[int, str]) -> None:
    port, password = living
    for host in ("127.0.0.1", "localhost"):
        own = {"Host": f"{host}:{port}", "Origin": f"http://{host}:{port}", **JSON}
        assert ask(port, "POST", "/api/flows/count", own, password) == (200, b"1")
        status, page = ask(port, "GET", "/runs", {"Host": f"{host}:{port}", "Accept": "text/html"})
        assert (status, b"<!DOCTYPE html>" in page) == (200, True)
    status, page = ask(port, "GET", "/log-in", {})
    assert (status, b'localStorage.setItem("prefect-password"' in page) == (200, True)


def test_streams_of_events_are_for_the_owner_alone(living: tuple[int, str]) -> None:
    port, password = living
    wanted = json.dumps({"type": "filter", "filter": {"event": {"name": ["a.test"]}}})

    def stream(said: str | None, origin: str | None = None) -> dict[str, Any]:
        with connect(f"ws://127.0.0.1:{port}/api/events/out", subprotocols=[PREFECT], origin=origin) as socket:
            socket.send(json.dumps({"type": "auth", "token": said}))
            answer = json.loads(socket.recv(20))
            socket.send(wanted)
            return dict(answer)

    assert stream(password) == {"type": "auth_success"}
    for guess in (None, "owner:"):
        with pytest.raises(ConnectionClosed):
            stream(guess)
    with pytest.raises(InvalidStatus, match="403"):
        stream(password, "http://evil.example")


def test_doctor_finds_that_it_wants_a_password_and_refuses_other_sites(living: tuple[int, str], home: Path) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from rl_training.services.doctor import diagnose

    port, password = living
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api", PREFECT_API_AUTH_STRING: password}):
        diagnosis = diagnose()
    assert [finding.status for finding in diagnosis.findings if finding.check == "prefect"] == ["ok", "ok"]


def test_files_are_for_the_owner_alone(living: tuple[int, str], started_home: Path) -> None:
    files = [path for path in (started_home / "prefect").rglob("*") if "pages" not in path.parts]
    assert {"prefect.db", "prefect.db-wal", "server.log"} <= {path.name for path in files}
    modes = {path.relative_to(started_home): oct(stat.S_IMODE(path.stat().st_mode)) for path in files}
    assert {name: mode for name, mode in modes.items() if mode not in ("0o600", "0o700")} == {}


def test_the_password_is_on_no_command_line_and_in_no_file(living: tuple[int, str], started_home: Path) -> None:
    _, password = living
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if password in line] == []
    written = [path for path in started_home.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]
    assert written == []


def test_server_ends_when_its_owner_is_killed_and_the_next_start_says_how_the_flow_run_ended(
    started_home: Path,
) -> None:
    before = len(flow_states(started_home))
    owner, living = (start_owner(started_home, seconds=600.0) for _ in range(2))
    server, _ = server_of(owner), server_of(living)
    try:
        owner.kill()
        owner.communicate(timeout=LIMIT)
        wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
        assert flow_states(started_home)[before:] == ["RUNNING", "RUNNING"]
        again = start_owner(started_home, seconds=0.0)
        out, err = again.communicate(timeout=LIMIT)
        assert out.splitlines()[-1] == "slept", err
        # The other one's process is alive, though its server is not the one that was asked.
        assert sorted(flow_states(started_home)[before:]) == ["COMPLETED", "CRASHED", "RUNNING"]
    finally:
        os.killpg(living.pid, signal.SIGTERM)
        living.communicate(timeout=LIMIT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_owner_ends_both_and_is_recorded(started_home: Path, number: signal.Signals) -> None:
    before = len(flow_states(started_home))
    owner = start_owner(started_home, seconds=600.0)
    server = server_of(owner)
    os.killpg(owner.pid, number)  # as a terminal does: to the entire group, which the server is not in
    owner.communicate(timeout=LIMIT)
    wait_for(lambda: not server.is_running())
    assert flow_states(started_home)[before:] == ["CRASHED"]


def test_a_first_start_cut_short_leaves_nothing_behind_and_the_next_one_works(tmp_path: Path) -> None:
    owner = start_owner(tmp_path, seconds=0.0)
    unfinished = tmp_path / "prefect" / "prefect.new"
    wait_for(unfinished.exists)  # the migration is under way
    family = psutil.Process(owner.pid).children(recursive=True)
    assert len(family) >= 2  # the server, and its migration
    owner.kill()
    owner.communicate(timeout=LIMIT)
    _, alive = psutil.wait_procs(family, timeout=LIMIT)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert not (tmp_path / "prefect" / "prefect.db").exists()

    again = start_owner(tmp_path, seconds=0.0)
    out, err = again.communicate(timeout=LIMIT)
    assert again.returncode == 0, err
    assert out.splitlines()[-1] == "slept"
    assert flow_states(tmp_path) == ["COMPLETED"]


def test_a_server_that_cannot_start_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.errors import UserError
    from rl_training.services.embedded_server import EmbeddedServer

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


def test_the_pages_are_opened_on_flow_runs_of_the_past(started_home: Path) -> None:
    (flow_run,) = rows(started_home, "select id from flow_run order by created limit 1")[0]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", "ui", "--prefect", flow_run, "--no-browser"],
        env={**settings, "RL_TRAINING_HOME": str(started_home), "HOME": str(started_home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        link = urlsplit(process.stdout.readline().strip())
        asked = parse_qs(link.fragment)
        assert (link.path, asked["flow_run"]) == ("/log-in", [str(UUID(flow_run))])
        password = base64.b64decode(asked["password"][0]).decode()
        status, found = ask(link.port or 0, "GET", f"/api/flow_runs/{UUID(flow_run)}", {}, password)
        assert (status, json.loads(found)["state_type"]) == (200, "COMPLETED")
        (server,) = psutil.Process(process.pid).children()
        process.terminate()
        assert process.communicate(timeout=LIMIT) == ("", "private link, valid until Ctrl-C\n")
        assert process.returncode == 0
        wait_for(lambda: not server.is_running())
    finally:
        process.kill()


def test_a_machine_without_loopback_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rl_training.services.embedded_server
    from rl_training.errors import UserError

    def unreachable(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    monkeypatch.setattr(rl_training.services.embedded_server, "create_connection", unreachable)
    with pytest.raises(UserError, match=r"127\.0\.0\.1 can't be reached \(Network is unreachable\)"):
        rl_training.services.embedded_server.EmbeddedServer()


IMPORTED = """
import os
from rl_training.services.prefect_environment import prepare_prefect

with prepare_prefect():
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

    from rl_training.errors import UserError
    from rl_training.services.embedded_server import provide_server

    with (
        temporary_settings(updates={PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(UserError, match=r"Prefect server at http://127\.0\.0\.1:9/api does not answer"),
        provide_server(),
    ):
        raise AssertionError("the block must not run")
