"""`rl-training ui`: MLflow's pages for the user who started it and nobody else."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest
from waiting import LIMIT

from rl_training import run_layout
from rl_training.cli.app import run
from rl_training.errors import UserError
from rl_training.serving.loopback import listen_on_loopback, show_in_browser
from rl_training.serving.mlflow_pages import find_page
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_store import connect

RUN_PAGE = "#/experiments/{}/runs/{}?workflowType=machine_learning"


class Pages(NamedTuple):
    home: Path
    process: subprocess.Popen[str]
    link: str
    experiment_id: str
    run_id: str

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    @property
    def secret(self) -> str:
        return urlsplit(self.link).path.strip("/")


@pytest.fixture(scope="module")
def pages(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The command for all tests that leave it running; see `start`."""
    yield from start(store_template, tmp_path_factory.mktemp("home"))


@pytest.fixture
def own_pages(store_template: Path, tmp_path: Path) -> Iterator[Pages]:
    """The command for a test that ends it, because other tests may run after that one."""
    yield from start(store_template, tmp_path)


def start(store_template: Path, home: Path) -> Iterator[Pages]:
    """Yields the command, started on a store with one run, after it has printed its link; ends it afterwards."""
    shutil.copy(store_template, home / "mlflow.db")
    (home / "mlflow.db").chmod(0o644)
    client = connect(f"sqlite:///{home}/mlflow.db")
    experiment_id = client.create_experiment("shown", artifact_location=f"{home}/artifacts")
    run_id = client.create_run(experiment_id).info.run_id
    settings = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", "ui", run_id, "--no-browser"],
        env={**settings, "RL_TRAINING_HOME": str(home), "MLFLOW_SERVER_ALLOWED_HOSTS": "elsewhere"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield Pages(home, process, process.stdout.readline().strip(), experiment_id, run_id)
    with suppress(ProcessLookupError):
        process.kill()
    process.communicate()


def ask(pages: Pages, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Any:
    """The status and the content of an answer; `{secret}` and `{port}` are filled in."""
    known = {"secret": pages.secret, "port": pages.port}
    sent = {name: value.format(**known) for name, value in (headers or {}).items()}
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=LIMIT)
    try:
        connection.request(method, path.format(**known), body and json.dumps(body), sent)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


CREATE = "api/2.0/mlflow/experiments/create"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"/{CREATE}", JSON, 404),
        (f"/wrong/{CREATE}", JSON, 404),
        (f"/{{secret}}x/{CREATE}", JSON, 404),
        (f"//{{secret}}/{CREATE}", JSON, 404),
        (f"/{{secret}}/{CREATE}", {"Host": "evil.example", **JSON}, 403),
        (f"/{{secret}}/{CREATE}", {"Host": "evil.example:{port}", **JSON}, 403),
        (f"/{{secret}}/{CREATE}", {"Origin": "http://evil.example", **JSON}, 403),
        (f"/{{secret}}/{CREATE}", {"Origin": "http://evil.example", "Content-Type": "text/plain"}, 403),
        (f"/{{secret}}/{CREATE}", {"Origin": "http://127.0.0.1:1", **JSON}, 403),
        (f"/{{secret}}/{CREATE}", {"Origin": "null", **JSON}, 403),
    ],
)
def test_strangers_and_other_sites_get_nothing(path: str, headers: dict[str, str], status: int, pages: Pages) -> None:
    assert ask(pages, "POST", path, headers, {"name": "theirs"}) == (status, b"")
    assert ask(pages, "GET", path.removesuffix(CREATE), headers) == (status, b"")
    assert connect(f"sqlite:///{pages.home}/mlflow.db").get_experiment_by_name("theirs") is None


@pytest.mark.parametrize(
    "path", ["/", "/health", "/version", "/static-files/favicon.ico", "/docs", "/{secret}/../health"]
)
def test_nothing_is_served_beside_the_secret_address(path: str, pages: Pages) -> None:
    assert ask(pages, "GET", path)[0] == 404


def test_the_link_opens_the_runs_page_for_its_owner(pages: Pages) -> None:
    assert pages.link == (
        f"http://127.0.0.1:{pages.port}/{pages.secret}/{RUN_PAGE.format(pages.experiment_id, pages.run_id)}"
    )
    assert len(pages.secret) == 43  # 32 bytes
    status, page = ask(pages, "GET", "/{secret}/")
    assert (status, b"<title>MLflow</title>" in page) == (200, True)
    assert ask(pages, "GET", "/{secret}") == (307, b"")
    assert ask(pages, "GET", "/{secret}/static-files/favicon.ico")[0] == 200
    for host in ("127.0.0.1", "localhost"):
        own = {"Host": f"{host}:{{port}}", "Origin": f"http://{host}:{{port}}", **JSON}
        status, found = ask(pages, "POST", "/{secret}/ajax-api/2.0/mlflow/runs/search", own, {"experiment_ids": ["1"]})
        assert (status, json.loads(found)["runs"][0]["info"]["run_id"]) == (200, pages.run_id)


def test_programs_use_the_address_as_a_server(pages: Pages) -> None:
    client = connect(f"http://127.0.0.1:{pages.port}/{pages.secret}")
    assert client.get_run(pages.run_id).info.experiment_id == pages.experiment_id


def test_the_secret_is_on_no_command_line_and_in_no_file(pages: Pages) -> None:
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if pages.secret in line] == []
    assert [
        path for path in pages.home.rglob("*") if path.is_file() and pages.secret.encode() in path.read_bytes()
    ] == []
    assert oct(stat.S_IMODE((pages.home / "mlflow.db").stat().st_mode)) == "0o600"


@pytest.mark.slow
@pytest.mark.parametrize("stdout", [">/dev/full", "| true"])
def test_a_link_that_nobody_can_read_is_a_one_line_error(stdout: str, pages: Pages) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m rl_training ui --no-browser {stdout}"],
        env={**os.environ, "RL_TRAINING_HOME": str(pages.home)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the link could not be written to stdout: ")
    assert done.stderr.count("\n") == 1


def test_a_signal_ends_it_in_order(own_pages: Pages) -> None:
    assert psutil.Process(own_pages.process.pid).children(recursive=True) == []
    with socket.create_connection(("127.0.0.1", own_pages.port)) as asking:  # and does not end its request
        asking.sendall(f"POST /{own_pages.secret}/graphql HTTP/1.1\r\nHost: 127.0.0.1:{own_pages.port}\r\n".encode())
        asking.sendall(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
        own_pages.process.send_signal(signal.SIGINT)
        out, err = own_pages.process.communicate(timeout=LIMIT)
    assert (own_pages.process.returncode, out, err) == (0, "", "private link, valid until Ctrl-C\n")


def test_a_port_that_is_taken_is_a_one_line_error() -> None:
    with listen_on_loopback(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 can't be used: Address already in use"):
            listen_on_loopback(port)


def test_where_a_server_shows_the_store_its_page_is_the_link(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(f"sqlite:///{home}/mlflow.db")
    run_id = client.create_run("0").info.run_id
    monkeypatch.setenv("RL_TRAINING_MLFLOW_UI", "http://shown.example/")
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":9")
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert run(["ui", run_id]) == 0
    page = f"http://shown.example/{RUN_PAGE.format(0, run_id)}"
    out, err = capfd.readouterr()
    assert out == f"{page}\n"
    assert "private link" not in err
    assert opened == [page]


def test_pages_are_found_by_run_directory_and_version(home: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{home}/mlflow.db"
    client = connect(uri)
    run_id = client.create_run("0").info.run_id
    client.create_registered_model("a b")
    client.create_model_version("a b", f"runs:/{run_id}/model")
    json_files.write_json(tmp_path / run_layout.MLFLOW, {"run_id": run_id})
    assert find_page(str(tmp_path), uri) == RUN_PAGE.format(0, run_id)
    assert find_page("models:/a b/1", uri) == "#/models/a%20b/versions/1"
    assert find_page(None, uri) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not the directory of a run that is in MLflow"),
        ("[]", "is not the directory of a run that is in MLflow"),
        ('{"run_id": "../../elsewhere"}', "is no checkpoint"),
        ('{"run_id": "0123456789abcdef0123456789abcdef"}', "has no such thing"),
    ],
)
def test_a_directory_that_leads_to_no_run_is_refused(
    content: str | None, message: str, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        (folder / run_layout.MLFLOW).write_text(content)
    assert run(["ui", str(folder)]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_browser_is_started_on_a_private_file_that_goes_away(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = "http://127.0.0.1:5000/s3cret/#/?a=1&b=2"
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":9")
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with show_in_browser(link):
        (page,) = home.glob("open-*.html")
        assert oct(stat.S_IMODE(page.stat().st_mode)) == "0o600"
        assert "url=http://127.0.0.1:5000/s3cret/#/?a=1&amp;b=2" in page.read_text()
    assert opened == [page.as_uri()]
    assert not page.exists()
