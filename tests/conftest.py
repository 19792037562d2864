"""Fixtures of all tests; puts the tests' environments and plug-ins on the path and gives the runs a home."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

TESTS = Path(__file__).parent
PATHS = (str(TESTS), str(TESTS.parent))

for path in PATHS:
    if path not in sys.path:
        sys.path.insert(0, path)
# One thread, before numpy and torch are imported: sums differ between counts, and so would what a tiny task learns.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Hundreds of child processes import what the first of them has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Messages name programs by their names where PATH leads to them.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session", autouse=True)
def rl_training_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of the test session."""
    home = tmp_path_factory.mktemp("home")
    previous = os.environ.get("RL_TRAINING_HOME")
    os.environ["RL_TRAINING_HOME"] = str(home)
    yield home
    if previous is None:
        del os.environ["RL_TRAINING_HOME"]
    else:
        os.environ["RL_TRAINING_HOME"] = previous


@pytest.fixture(autouse=True)
def _nothing_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets after each test which directories must not be imported from. The program keeps them until it ends."""
    from rl_training.security import import_guard

    monkeypatch.setattr(import_guard, "_excluded", {})


@pytest.fixture(autouse=True)
def _no_algorithm_is_left_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets after each test which algorithms it has registered. The program keeps them until it ends."""
    from rl_training.experiment import registry

    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture(autouse=True)
def _signals_are_heeded() -> Iterator[None]:
    """Restores the signal handlers. The command line ignores signals once its result is known, as it ends then.

    Child processes would inherit the ignored signals. They are restored before a test too: a shell's background job
    ignores SIGINT, and a fixture of a wider scope may have run a command.
    """
    _heed_signals()
    yield
    _heed_signals()


def _heed_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(params=["numpy", "torch", "recorded"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend of all networks: numpy, as on a CPU, or torch, call by call or recorded, as on a GPU."""
    from rl_training.networks import flat
    from tests.network_parts import BACKENDS

    chosen = BACKENDS[request.param]
    monkeypatch.setattr(flat, "backend_of", lambda device: chosen)
    return chosen


@pytest.fixture
def small_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file with the settings `SMALL`. The folder `home` beside it is the home of rl_training."""
    from tests.tiny_tasks import SMALL

    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder that `make` fills once, in the first of pytest's processes that asks for it."""
    of_all = tmp_path_factory.getbasetemp()
    folder = (of_all.parent if "PYTEST_XDIST_WORKER" in os.environ else of_all) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = tmp_path_factory.mktemp(name)
            make(unfinished)
            unfinished.rename(folder)
    return folder


# An MLflow store is made and migrated once a session and copied for each test. MLflow takes seconds to import, so only
# the fixtures import it.


@pytest.fixture(scope="session")
def store_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        from rl_training.tracking.mlflow_store import connect

        connect(f"sqlite:///{folder}/mlflow.db")

    return made_once(tmp_path_factory, "mlflow_template", make) / "mlflow.db"


@pytest.fixture
def home(store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the test, with an empty embedded MLflow store in it."""
    path = tmp_path / "home"
    path.mkdir()
    shutil.copy(store_template, path / "mlflow.db")
    monkeypatch.setenv("RL_TRAINING_HOME", str(path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return path


@pytest.fixture
def client(home: Path):
    """A client of the store in `home`."""
    from rl_training.tracking.mlflow_store import connect

    return connect(f"sqlite:///{home}/mlflow.db")


# The database of the embedded Prefect server is made once too, and one server serves the tests that run flows in this
# process.


@pytest.fixture(scope="session")
def prefect_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(home: Path) -> None:
        from rl_training.services.embedded_server import EmbeddedServer

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RL_TRAINING_HOME", str(home))
            server = EmbeddedServer()
            server.wait_until_ready()
            server.stop()

    return made_once(tmp_path_factory, "prefect_template", make) / "prefect"


@pytest.fixture(scope="session")
def flow_server(
    store_template: Path, prefect_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """An embedded Prefect server in a home with an empty MLflow store."""
    from rl_training.services.embedded_server import EmbeddedServer

    home = tmp_path_factory.mktemp("flow_home")
    shutil.copy(store_template, home / "mlflow.db")
    shutil.copytree(prefect_template, home / "prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(home))
        server = EmbeddedServer()
    server.wait_until_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def flow_home(flow_server: Any) -> Iterator[Path]:
    """The home of the flows that run in this process. The flows of several test modules share it."""
    from rl_training.services.embedded_server import use_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(flow_server.home.parent))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with use_server(flow_server):
            yield flow_server.home.parent


@pytest.fixture
def flow_client(flow_home: Path) -> Any:
    """A client of the MLflow store in `flow_home`."""
    from rl_training.tracking.mlflow_store import connect

    return connect(f"sqlite:///{flow_home}/mlflow.db")
