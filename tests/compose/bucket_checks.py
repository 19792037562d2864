"""Artifacts in an S3 store on this machine, as the guide for remote workers has it, and a backup of such services."""

from __future__ import annotations

import re
from pathlib import Path

from backup_checks import read_policy
from commands import ROOT, TestFailed, require, run, say
from flow_checks import LEARNER, Flows
from s3_store import BUCKET, Store
from stack import Stack

GUIDE = ROOT / "docs/how-to/remote-workers.md"
PLACE = f"s3://{BUCKET}/rl-training"


def check_bucket(stack: Stack) -> None:
    """A run's files go to the bucket; a backup leaves them there, and the restored services find them again.

    Args:
        stack: Services of which nothing is left.
    """
    stack.environment.pop("COMPOSE_FILE", None)  # with it, Docker reads no docker-compose.override.yml
    folder = stack.scratch / "bucket"
    folder.mkdir()
    store = Store(folder, stack.engine.gateway)
    try:
        _configure(stack.clone, store)
        stack.up()
        flows = Flows(stack)
        policy = read_policy(flows, run_id := flows.train("train-flow/default", overrides=LEARNER))
        _require_in_bucket(store, run_id)
        backup = _back_up(stack, folder / "monday")
        stack.down()
        _restore(stack, backup)
        stack.up()
        flows.require_nothing_lost()
        require(read_policy(flows, run_id) == policy, f"run {run_id} has another policy after restoring")
    finally:
        store.process.kill()
        store.process.wait()
    for name in ("docker-compose.override.yml", ".env"):
        (stack.clone / name).unlink()


def _configure(clone: Path, store: Store) -> None:
    """Writes what the guide says, with the address of this store."""
    key_id, key = store.credentials
    for name, content in (("s3_key_id", key_id), ("s3_key", key)):
        file = clone / "docker" / "secrets" / name
        file.write_text(content)
        file.chmod(0o444)
    (clone / ".env").write_text(f"MLFLOW_ARTIFACTS={PLACE}\n")
    (override,) = re.findall(r"```yaml\n(services:\n  mlflow:\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    text = override.replace("https://s3.example.org", store.endpoint)
    (clone / "docker-compose.override.yml").write_text(text)


def _require_in_bucket(store: Store, run_id: str) -> None:
    files = [key for key in store.objects() if f"/{run_id}/artifacts/checkpoints/" in key]
    require(files, f"the bucket has no checkpoint of run {run_id}: {sorted(store.objects())[:20]}")


def _back_up(stack: Stack, backup: Path) -> Path:
    """Backs up both databases; the bucket is named and left out."""
    say("docker/backup.sh beside a bucket")
    said = _run_script(stack, "backup.sh", backup)
    require(f"the artifacts are in {PLACE} and are not copied" in said, f"docker/backup.sh says: {said}")
    names = sorted(path.name for path in backup.iterdir())
    require(names == ["SHA256SUMS", "backup.json", "mlflow.pgdump", "prefect.pgdump"], f"the backup has {names}")
    return backup


def _restore(stack: Stack, backup: Path) -> None:
    """Restores both databases; services that keep artifacts in a folder, or a backup with artifacts, are refused."""
    say("docker/restore.sh beside a bucket")
    settings = (stack.clone / ".env").read_text()
    with_artifacts = stack.scratch / "backups" / "monday"
    _require_refused(stack, with_artifacts, f"the services keep artifacts in {PLACE}, expected a folder")
    (stack.clone / ".env").write_text("")
    _require_refused(stack, backup, "the artifacts were in a bucket; name it by MLFLOW_ARTIFACTS, as before")
    (stack.clone / ".env").write_text(settings)
    _run_script(stack, "restore.sh", backup)


def _require_refused(stack: Stack, backup: Path, reason: str) -> None:
    try:
        _run_script(stack, "restore.sh", backup)
    except TestFailed as refused:
        require(reason in str(refused), str(refused))
    else:
        raise TestFailed(f"docker/restore.sh does not refuse {backup}; expected: {reason}")


def _run_script(stack: Stack, script: str, backup: Path) -> str:
    """Runs a script of docker/, and returns all that it says."""
    command = ["sh", "-c", 'exec "$0" "$1" 2>&1', f"docker/{script}", backup]
    return run(command, cwd=stack.clone, environment=stack.environment)
