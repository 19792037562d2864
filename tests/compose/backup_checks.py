"""A backup of the services restores fresh ones, in which a run that was stopped continues to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import TestFailed, eventually, require, run, say
from flow_checks import PATIENCE, Flows
from kill_checks import LONG
from services_support import Services

from rl_training.tracking.attempts import get_attempts

DATABASE_PASSWORDS = ("postgres_password", "mlflow_db_password", "prefect_db_password")
"""What fresh services have anew; those of the servers' users are in their databases."""
STOPPED: dict[str, Any] = {**LONG, "total_timesteps": 200_000}
"""So long that a cancel, which may take ten seconds to arrive, comes before the end."""


def check_backup(flows: Flows) -> None:
    """Stops a run, backs up, removes everything, restores to fresh services, and resumes the run.

    Args:
        flows: Flows with completed runs, which must be there afterwards.
    """
    stack, backup = flows.stack, flows.stack.scratch / "backups" / "monday"
    wanted = flows.train("train-flow/default", overrides=STOPPED)
    flow_run, stopped = _train_and_stop(flows)

    say("docker/backup.sh")
    run(["docker/backup.sh", backup], cwd=stack.clone, environment=stack.environment)
    _check_contents(backup, stack.clone / "docker" / "secrets")
    _check_layout(backup, flows.user)
    _require_refused(flows, backup)
    stack.down()
    for name in DATABASE_PASSWORDS:
        (stack.clone / "docker" / "secrets" / name).unlink()
    run(["docker/make_secrets.sh"], cwd=stack.clone)
    say("docker/restore.sh")
    run(["docker/restore.sh", backup], cwd=stack.clone, environment=stack.environment)
    stack.up()
    flows.require_nothing_lost()

    done = flows.user.prefect("flow-run", "retry", flow_run)
    require(done.returncode == 0, done.stdout + done.stderr)
    state = flows.wait(flow_run, "Completed", "Failed", "Crashed")
    require(state == "Completed", f"the stopped flow run was resumed and ended {state}")
    resumed = flows.note(flow_run)
    require(resumed == stopped, f"another run was resumed than the stopped one: {resumed}, {stopped}")
    steps = [attempt.from_step for attempt in get_attempts(flows.registry.get_run(resumed))]
    require(len(steps) == 2 and steps[0] == 0 < steps[1], f"the attempts at the run began at the steps {steps}")
    found = read_policy(flows, resumed)
    require(found == read_policy(flows, wanted), f"the resumed run {resumed} has another policy than {wanted}")
    flows.require_nothing_lost()


def _train_and_stop(flows: Flows) -> tuple[str, str]:
    """Returns a flow run that was cancelled on its way, and its run in MLflow, which has all of it."""
    flow_run = flows.user.begin("train-flow/default", overrides=STOPPED)
    eventually(lambda: flows.trains(flow_run), PATIENCE, f"flow run {flow_run} trains")
    cancel = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    flows.user.post(f"/flow_runs/{flow_run}/set_state", cancel)
    state = flows.wait(flow_run, "Cancelled", "Completed")  # it is Crashed in between
    require(state == "Cancelled", f"the flow run was cancelled and ended {state}")
    run_id = flows.mlflow_run(flow_run)
    ended = lambda: flows.registry.get_run(run_id).info.status == "KILLED"  # noqa: E731
    eventually(ended, PATIENCE, f"MLflow has all of run {run_id}")
    return flow_run, run_id


def _check_contents(backup: Path, secrets: Path) -> None:
    """The backup is its owner's, verifies, and has no password of a file; nothing else is beside it."""
    require(backup.stat().st_mode & 0o077 == 0, "others can look into the backup")
    require([path.name for path in backup.parent.iterdir()] == [backup.name], "something is left beside the backup")
    run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=backup)
    passwords = [path.read_bytes().strip() for path in secrets.iterdir()]
    files = [path for path in backup.rglob("*") if path.is_file()]
    require(any("artifacts" in path.parts for path in files), "the backup has no artifacts")
    for path in files:
        content = path.read_bytes()
        require(not any(password in content for password in passwords), f"{path} has a password")


def _check_layout(backup: Path, user: Services) -> None:
    """`rl-training restore` reads it as one of its own: it refuses only the artifacts that are there."""
    taken = user.home / "taken"
    (taken / "artifact").mkdir(parents=True)
    servers = {
        "MLFLOW_BACKEND_STORE_URI": "postgresql://mlflow@127.0.0.1:9/mlflow",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql://prefect@127.0.0.1:9/prefect",
        "MLFLOW_ARTIFACTS_DESTINATION": str(taken),
    }
    elsewhere = Services(user.api_url, user.home, user.environment | servers)
    done = elsewhere.rl_training("restore", str(backup))
    require(f"{taken} is not empty" in done.stderr, f"`rl-training restore` says of the backup: {done.stderr}")


def _require_refused(flows: Flows, backup: Path) -> None:
    """A backup does not replace another, and services that are in use are not restored to."""
    stack = flows.stack
    reasons = {"backup.sh": "never replaces another", "restore.sh": "is not empty, expected new services"}
    for script, reason in reasons.items():
        try:
            run([f"docker/{script}", backup], cwd=stack.clone, environment=stack.environment)
        except TestFailed as refused:
            require(reason in str(refused), str(refused))
        else:
            raise TestFailed(f"docker/{script} does not refuse")
    flows.require_nothing_lost()


def read_policy(flows: Flows, run_id: str) -> str:
    """Returns the hash of the policy in a run's newest checkpoint in MLflow."""
    newest = max(file.path for file in flows.registry.list_artifacts(run_id, "checkpoints"))
    target = flows.stack.scratch / run_id
    target.mkdir(exist_ok=True)
    manifest = flows.registry.download_artifacts(run_id, f"{newest}/manifest.json", str(target))
    return str(json.loads(Path(manifest).read_text())["policy_sha256"])
