"""A training process that was thought dead and wakes up after its run has continued in another process."""

import signal
import subprocess
import sys
import time

import pytest
from mlflow_store import make_run, of_another_machine, stored_points

from rl_training import run_layout
from rl_training.runs.locks import take_over
from rl_training.tracking import json_files
from rl_training.tracking.attempts import get_attempts
from rl_training.tracking.session import start_tracking

pytestmark = pytest.mark.services

TRAINER = """
import sys
from pathlib import Path
from rl_training.errors import RunTakenOver
from rl_training.experiment.loading import load_config
from rl_training.runs.locks import RunLock
from rl_training.tracking.session import start_tracking
run_dir = Path(sys.argv[1])
with start_tracking(run_dir, load_config(run_dir / "config.yaml")) as session, RunLock(run_dir):
    for step in range(0, 300, 10):
        session.log(step, {"train/loss": step / 3}, "update")
    print("asleep", flush=True)
    for line in sys.stdin:
        try:
            session.log(int(line), {"train/loss": int(line) / 3}, "update")
            print("logged", flush=True)
        except RunTakenOver as error:
            print(error, flush=True)
            break
    print(session.finish("FINISHED").message, flush=True)
"""


@pytest.mark.parametrize("where", ["here", "on another machine"])
def test_a_process_that_wakes_up_after_its_run_was_resumed_writes_nothing_to_it(where, client):
    run_dir, config = make_run(total_timesteps=1_000)
    command = [sys.executable, "-c", TRAINER, str(run_dir)]
    sleeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert sleeper.stdout.readline() == "asleep\n"
        run_id = json_files.read_json(run_dir / run_layout.MLFLOW)["run_id"]
        while "attempt" not in client.get_run(run_id).data.tags:
            time.sleep(0.2)
        sleeper.send_signal(signal.SIGSTOP)
        if where == "here":
            new_dir = run_dir
            take_over(run_dir)
        else:
            new_dir = of_another_machine(run_dir, {"total_timesteps": 1_000})
        with start_tracking(new_dir, config, from_step=200) as session:
            assert session.run_id == run_id
            for step in range(200, 500, 10):
                session.callback.log(step, {"train/loss": step / 3}, "update")
            sleeper.send_signal(signal.SIGCONT)
            said = []
            deadline = time.monotonic() + 180
            while not said or (said[-1] == "logged" and time.monotonic() < deadline):
                # On another machine its shipper learns it from MLflow when it has something to send.
                sleeper.stdin.write(f"{300 + len(said)}\n")
                sleeper.stdin.flush()
                said.append(sleeper.stdout.readline().rstrip())
                time.sleep(0.5)
            last_word = sleeper.stdout.readline()
            assert sleeper.wait(180) == 0
        assert session.finish("FINISHED").unsent == 0
    finally:
        sleeper.kill()
        sleeper.communicate()
    assert said[-1].startswith(f"the run in {run_dir} was taken over (")
    assert "this process writes nothing more to it" in last_word
    assert (run_dir / run_layout.STATUS).exists() == (where == "here")
    assert client.get_run(run_id).info.status == "FINISHED"
    assert sorted(step for _, step, _, _ in stored_points(client, run_id)) == list(range(0, 500, 10))
    assert client.get_run(run_id).data.tags["attempt"] == "2"
    assert [attempt.from_step for attempt in get_attempts(client.get_run(run_id))] == [0, 200]
