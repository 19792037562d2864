"""Artifacts in an S3 store, which asks for credentials: moto's server, over HTTP."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import gymnasium as gym
import numpy as np
import pytest
from mlflow_server import Server
from s3_store import BUCKET, Store
from waiting import wait_for

from rl_training.errors import TrackingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import list_checkpoints
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.mlflow_health import check_mlflow
from rl_training.tracking.mlflow_store import connect
from rl_training.tracking.session import TrackingSession, start_tracking
from rl_training.tracking.shipping.sync import sync
from tests.off_policy_runs import dqn

pytestmark = pytest.mark.services

PATIENCE = 180.0
PART = 8 * 2**20
"""The size in bytes from which a file is sent in parts."""


class Wide(gym.Env[np.ndarray[Any, Any], int]):
    """Observations of 12 kB, so that a replay shard is large after few steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3_000,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 3_000).astype(np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return self.np_random.uniform(-1, 1, 3_000).astype(np.float32), 1.0, self.t == 50, False, {}


gym.register("Wide-v0", Wide)
CONFIG = dqn("Wide-v0", num_envs=1, total_timesteps=1_600, learning_starts=1_590, buffer_size=1_600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("s3"))
    yield store
    store.process.kill()
    store.process.wait()


@pytest.fixture
def start_server(store_template: Path, tmp_path: Path, home: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def start(artifacts: list[str], environment: dict[str, str]) -> Server:
        shutil.copy(store_template, tmp_path / "mlflow.db")
        servers.append(Server(tmp_path, artifacts, environment))
        servers[0].start()
        return servers[0]

    yield start
    for server in servers:
        server.stop()


def train(experiment: str) -> tuple[Path, Any]:
    """Trains without tracking; returns the directory of a run with replay shards of several parts, and its settings."""
    config = CONFIG.model_copy(update={"experiment": experiment})
    run_dir = DefaultExperimentManager().setup(config).train().run_dir
    assert max(path.stat().st_size for path in (run_dir / "replay").iterdir()) > PART
    return run_dir, config


def finish(session: TrackingSession) -> None:
    """Ends tracking, and sends what takes longer than the end of a run waits."""
    session.finish("FINISHED", stop_reason="completed")
    wait_for(lambda: is_sent(session.run_dir), PATIENCE)


def is_sent(run_dir: Path) -> bool:
    """Sends the rest of a run; returns whether MLflow has everything."""
    try:
        report = sync(run_dir)
    except TrackingError:  # the shipper of the training is still there
        return False
    return (report.unsent, report.message) == (0, "")


def require_all_there(run_dir: Path, run_id: str, uri: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Checks that another machine gets the newest checkpoint, with its replay shards, byte for byte."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("RL_TRAINING_HOME", str(folder / "another home"))
    kept = folder / "kept"
    run_dir.rename(kept)
    original = list_checkpoints(kept / "checkpoints")[0][0].path
    copy = download_checkpoint(run_id).path
    assert not copy.is_relative_to(folder / "kept")
    names = sorted(path.name for path in original.iterdir())
    assert sorted(path.name for path in copy.iterdir()) == names
    assert all((copy / name).read_bytes() == (original / name).read_bytes() for name in names)


@pytest.mark.parametrize("who", ["the server", "each client"])
def test_a_run_goes_to_the_store_in_parts_and_comes_back(
    who: str, store: Store, start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"s3://{BUCKET}/{who.replace(' ', '-')}"
    if who == "the server":
        server = start_server(["--artifacts-destination", root], store.environment)
    else:
        server = start_server(["--default-artifact-root", root, "--no-serve-artifacts"], {})
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
    run_dir, config = train(who)
    session = start_tracking(run_dir, config, tracking_uri=server.uri)
    finish(session)
    shards = {path.name: path.stat().st_size for path in (run_dir / "replay").iterdir()}
    stored = {
        key: entry for key, entry in store.objects().items() if key.startswith(root.removeprefix(f"s3://{BUCKET}/"))
    }
    assert {Path(key).name: entry["Size"] for key, entry in stored.items() if "/replay/" in key} == shards
    for key, entry in stored.items():
        parts = -(-entry["Size"] // PART)
        assert entry["ETag"].strip('"').endswith(f"-{parts}") == (entry["Size"] >= PART), key
    require_all_there(run_dir, str(session.run_id), server.uri, monkeypatch, tmp_path)
    assert "ok      artifacts: a file was sent and came back" in [found.line() for found in check_mlflow(fix=False)]


def test_wrong_credentials_are_a_problem_that_doctor_names(
    store: Store, start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = store.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(botocore.exceptions.ClientError):
        store.client("s3", store.credentials[0], "wrong").list_objects_v2(Bucket=BUCKET)
    server = start_server(["--artifacts-destination", f"s3://{BUCKET}/wrong"], wrong)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    problems = [found.line() for found in check_mlflow(fix=False) if found.status == "problem"]
    assert any(line.startswith("problem artifacts: a file can't be sent and fetched again") for line in problems)


def test_a_server_that_is_killed_while_it_sends_a_shard_loses_nothing(
    store: Store, start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(["--artifacts-destination", f"s3://{BUCKET}/killed"], store.environment)
    run_dir, config = train("killed")
    session = start_tracking(run_dir, config, tracking_uri=server.uri)
    wait_for(store.under_way)
    store.process.send_signal(signal.SIGSTOP)  # so that the upload can't be complete before the server is killed
    server.stop()
    store.process.send_signal(signal.SIGCONT)
    (unfinished,) = store.under_way()
    assert "/replay/" in unfinished
    assert unfinished not in store.objects()
    server.start()
    wait_for(lambda: unfinished in store.objects(), PATIENCE)
    finish(session)
    assert connect(server.uri).get_run(str(session.run_id)).info.status == "FINISHED"
    require_all_there(run_dir, str(session.run_id), server.uri, monkeypatch, tmp_path)
