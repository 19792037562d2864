"""Makes `stack_0_1_0.tar.xz`, with the code of an earlier commit: a champion, a stopped run and a deployment.

    git archive 7ab246c | tar --extract --directory CODE          # CODE and STACK are new folders
    python tests/golden/write_stack_0_1_0.py CODE STACK

Both servers run on SQLite. Their files and the artifacts are then packed as a backup of the present version.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from rl_training.maintenance.backup import back_up

TASK = """
algo: ppo
env_id: CartPole-v1
total_timesteps: 20000
num_envs: 2
rollout_steps: 50
batch_size: 50
epochs: 1
learning_rate: 0.001
experiment: kept
network: {hidden: [8, 8]}
logging: {every: 5000}
evaluation: {every: 10000, episodes: 3, final_episodes: 5, video: false}
checkpoint: {every: 5000, keep_last: 1}
promotion: {model: kept, floor: 5.0, episodes: 20}
"""
DEPLOYMENT = """
pull: []
deployments:
  - name: nightly
    entrypoint: flows.train.train_flow
    tags: [rl-training]
    parameters: {config: ppo/cartpole}
    concurrency_limit: 1
    schedules: [{slug: nightly, cron: "0 3 * * *", timezone: UTC}]
    work_pool: {name: rl-training, job_variables: {env: {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: "30"}}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def make(stack: Path, environment: dict[str, str], ports: tuple[int, int]) -> dict[str, Any]:
    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *words], env=environment, cwd=stack, start_new_session=True
        )

    def run(*words: str) -> Any:
        command = [sys.executable, "-P", "-m", "rl_training", *words, "--json"]
        done = subprocess.run(command, env=environment, cwd=stack, stdout=subprocess.PIPE, text=True, check=False)
        return json.loads(done.stdout.splitlines()[-1])

    served = ["--workers", "1", "--backend-store-uri", f"sqlite:///{stack}/mlflow.db"]
    served += ["--artifacts-destination", str(stack / "artifacts")]
    servers = [
        start("mlflow", "server", "--port", str(ports[0]), *served),
        start("prefect", "server", "start", "--port", str(ports[1])),
    ]
    try:
        for port in ports:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(1.0)
        champion = run("train", "--config", "task.yaml", "--set", "seed=1", "--set", "total_timesteps=2000")
        run("sync", champion["run_dir"])
        run("promote", champion["run_id"], "--force", "the first one")
        uninterrupted = run("train", "--config", "task.yaml", "--set", "seed=2", "--no-track")
        run_dir = stack / "home" / "runs" / "stopped"
        training = start(
            "rl_training", "train", "--config", "task.yaml", "--set", "seed=2", "--set", f"run_dir={run_dir}"
        )
        while not list(run_dir.glob("checkpoints/step_00000000[5-9]*")):
            time.sleep(0.05)
        training.send_signal(signal.SIGTERM)
        training.wait()
        run("sync", str(run_dir))
        run("deploy", "--file", "prefect.yaml")
        time.sleep(15.0)  # Prefect writes its events later
        return {
            "commit": "7ab246c",
            "champion_run": champion["run_id"],
            "stopped_run": json.loads((run_dir / "mlflow.json").read_text())["run_id"],
            "policy_of_uninterrupted_run": uninterrupted["policy_sha256"],
        }
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGINT)
            server.wait(120)


def main() -> None:
    code, stack = (Path(word).resolve() for word in sys.argv[1:])
    ports = free_port(), free_port()
    (stack / "task.yaml").write_text(TASK)
    (stack / "prefect.yaml").write_text(DEPLOYMENT)
    databases = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{stack}/mlflow.db",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{stack}/prefect.db",
        "MLFLOW_ARTIFACTS_DESTINATION": str(stack / "artifacts"),
    }
    own = {
        "PYTHONPATH": str(code),
        "HOME": str(stack),
        "RL_TRAINING_HOME": str(stack / "home"),
        "PREFECT_HOME": str(stack / "prefect_home"),
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{ports[0]}",
        "PREFECT_API_URL": f"http://127.0.0.1:{ports[1]}/api",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
    }
    expected = make(stack, {**os.environ, **databases, **own}, ports)
    os.environ.update(databases)
    back_up(stack / "stack_0_1_0")
    with sqlite3.connect(stack / "mlflow.db") as database:
        (expected["champion_policy"],) = database.execute(
            "SELECT value FROM model_version_tags WHERE key = 'policy_sha256'"
        ).fetchone()
    (stack / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    with tarfile.open(Path(__file__).with_name("stack_0_1_0.tar.xz"), "w:xz") as archive:
        for name in ("expected.json", "stack_0_1_0"):
            archive.add(stack / name, name)


if __name__ == "__main__":
    main()
