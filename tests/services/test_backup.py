"""A backup of PostgreSQL and both servers is restored to a fresh stack, where a stopped run resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from precious_runs import train_precious_runs
from services_support import eventually
from stack_support import START_SECONDS, Stack, stack

import rl_training
from rl_training.maintenance.backup import back_up, restore
from rl_training.tracking.checkpoint_sources import download_checkpoint

pytestmark = pytest.mark.services

SERVERS = ("postgres", "mlflow-upgrade", "mlflow", "prefect")


def start(services: Stack, *names: str) -> None:
    for name in names:
        services.start(name)
        assert eventually(lambda name=name: services.is_well(name), START_SECONDS), services.log(name)


def use(monkeypatch: pytest.MonkeyPatch, services: Stack, home: Path) -> None:
    """Gives this process what a client has, and what the servers have."""
    secrets, port = services.secrets, services.ports["postgres"]
    addresses = {
        name: f"{name}:{(secrets / f'{name}_db_password').read_text().strip()}@127.0.0.1:{port}/{name}"
        for name in ("mlflow", "prefect")
    }
    api_url = f"http://127.0.0.1:{services.ports['prefect']}/api"
    variables = services.logins | {
        "RL_TRAINING_HOME": str(home),
        "MLFLOW_TRACKING_URI": services.mlflow_uri,
        "PREFECT_API_URL": api_url,
        "MLFLOW_BACKEND_STORE_URI": f"postgresql+psycopg2://{addresses['mlflow']}",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{addresses['prefect']}",
        "MLFLOW_ARTIFACTS_DESTINATION": str(services.folder / "mlflow" / "artifacts"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_restored_stack_has_the_champion_and_resumes_a_stopped_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_ALLOW_MODULES", "case_envs")
    backup = tmp_path / "backup"
    with stack() as old:
        start(old, *SERVERS)
        use(monkeypatch, old, tmp_path / "home")
        runs = train_precious_runs("kept")
        stopped = runs.stopped
        flows = old.postgres.query("prefect", "prefect", "SELECT count(*) FROM alembic_version").stdout
        back_up(backup)
        passwords = [path.read_bytes().strip() for path in old.secrets.iterdir()]
        login = (old.secrets / "mlflow_password").read_text()
    texts = [path.read_bytes() for path in backup.rglob("*") if path.is_file() and path.suffix != ".pgdump"]
    assert not any(password in text for password in passwords for text in texts)

    (tmp_path / "home").rename(tmp_path / "away")  # the machine that trained is gone too
    with stack() as new:
        start(new, "postgres")
        (new.secrets / "mlflow_password").write_text(login)  # its hash is in the database
        use(monkeypatch, new, tmp_path / "new_home")
        restore(backup)
        start(new, *SERVERS[1:])
        assert new.postgres.query("prefect", "prefect", "SELECT count(*) FROM alembic_version").stdout == flows
        again = download_checkpoint("models:/plain@champion", wanted="policy")
        assert again.policy_sha256 == runs.promoted
        resumed = rl_training.resume(f"runs:/{stopped.run_id}", progress=False)
        assert (resumed.run_id, resumed.policy_sha256) == (stopped.run_id, runs.never_stopped)
