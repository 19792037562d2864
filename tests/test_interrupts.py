"""Ctrl-C in a script or notebook that trains: the first saves and returns the result, the second stops at once."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from waiting import LIMIT, wait_for

from rl_training import Callback, TrainerState, resume
from rl_training.runtime.checkpoint import newest_good

pytestmark = pytest.mark.slow

CONFIG = {
    "algo": "ppo",
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 1_000_000,
    "num_envs": 2,
    "vectorization": "async",
    "rollout_steps": 32,
    "batch_size": 64,
    "epochs": 1,
    "evaluation": {"every": 1_000, "episodes": 2, "final_episodes": 3, "video": False},
}
SCRIPT = """
import json, sys, time
import psutil
import rl_training

config, how = json.loads(sys.argv[1]), sys.argv[2]

class Tells(rl_training.Callback):
    told = False

    def on_update_end(self, state):
        if not self.told and (state.run_dir / "mlflow.json").exists():  # the run is in MLflow
            self.told = True
            workers = [child.pid for child in psutil.Process().children()]
            print(json.dumps({"run_dir": str(state.run_dir), "children": workers}), flush=True)

    def on_train_end(self, state):
        if how == "ends slowly":
            print("ending", flush=True)
            time.sleep(600)

try:
    result = rl_training.train(config, [Tells()])
    end = {"stop_reason": result.stop_reason, "steps": result.num_timesteps, "checkpoint": str(result.checkpoint)}
except KeyboardInterrupt:
    end = {"interrupted": True}
left = [child.name() for child in psutil.Process().children() if "shipper" not in " ".join(child.cmdline())]
print(json.dumps({**end, "workers": left, "children": len(psutil.Process().children())}), flush=True)
"""


class Script:
    """A process that trains; its messages are lines of its output."""

    def __init__(self, how: str = "", **changes: Any) -> None:
        command = [sys.executable, "-c", SCRIPT, json.dumps({**CONFIG, **changes}), how]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


class Stops(Callback):
    """Stops a run at its first update."""

    def on_update_end(self, state: TrainerState) -> None:
        state.request_stop()


@pytest.fixture
def start(home: Path) -> Any:
    scripts: list[Script] = []

    def begin(how: str = "", **changes: Any) -> Script:
        scripts.append(Script(how, **changes))
        return scripts[-1]

    yield begin
    for script in scripts:
        script.process.kill()
        script.process.communicate()


def test_one_ctrl_c_saves_returns_the_result_and_leaves_no_process(start: Callable[..., Script]) -> None:
    script = start()
    begun = script.read()
    assert len(begun["children"]) == 3  # two workers and the shipper
    script.interrupt()
    end = script.read()
    assert (end["stop_reason"], end["children"]) == ("signal", 0)
    checkpoint, _ = newest_good(Path(begun["run_dir"]) / "checkpoints")
    assert checkpoint is not None
    assert (str(checkpoint.path), checkpoint.num_timesteps) == (end["checkpoint"], end["steps"])
    assert end["steps"] >= 128
    assert json.loads((Path(begun["run_dir"]) / "status.json").read_text())["status"] == "KILLED"
    assert script.process.wait(LIMIT) == 0  # the script goes on


def test_a_second_ctrl_c_while_the_run_ends_stops_at_once(start: Callable[..., Script]) -> None:
    script = start("ends slowly")
    begun = script.read()
    script.interrupt()
    assert script.process.stdout is not None
    assert script.process.stdout.readline() == "ending\n"
    script.interrupt()
    end = script.read()
    assert (end["interrupted"], end["workers"]) == (True, [])  # the shipper sends the rest, and ends by itself
    assert resume(begun["run_dir"], [Stops()], track=False).stop_reason == "callback"
    assert script.process.wait(LIMIT) == 0
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in begun["children"]))


def test_a_second_ctrl_c_ends_environments_that_hang(start: Callable[..., Script], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = start(env_id="case_envs:HangsWhile-v0", env_kwargs={"path": str(gate)})
    begun = script.read()
    gate.touch()
    wait_for(lambda: gate.with_suffix(".waits").exists())
    script.interrupt()
    with pytest.raises(subprocess.TimeoutExpired):
        script.process.wait(2.0)  # the step does not return, so the first has no effect
    script.interrupt()
    end = script.read()
    assert (end["interrupted"], end["workers"]) == (True, [])
    assert script.process.wait(LIMIT) == 0
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in begun["children"]))


CELLS = """
import psutil, rl_training

class Tells(rl_training.Callback):
    def on_update_end(self, state):
        if state.num_timesteps == 128:
            open("training", "w").close()
---
done = rl_training.train({**CONFIG, "total_timesteps": 256}, offline=True)
done
---
stopped = rl_training.train(CONFIG, [Tells()], offline=True)
---
[stopped.stop_reason, psutil.Process().children(recursive=True)]
"""


def test_a_notebook_shows_progress_and_the_result_and_survives_its_stop_button(home: Path, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in [f"CONFIG = {CONFIG!r}", *CELLS.split("---\n")]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(notebook, timeout=LIMIT, resources={"metadata": {"path": str(tmp_path)}})

    def press_stop() -> None:
        wait_for((tmp_path / "training").exists)
        for process in psutil.Process().children():  # the kernel gets the signal of the button
            if "ipykernel" in " ".join(process.cmdline()):
                process.send_signal(signal.SIGINT)

    button = threading.Thread(target=press_stop)
    button.start()
    client.execute()
    button.join()
    (bar, shown), (count,) = cells[2].outputs, cells[4].outputs
    assert '<progress max="256" value="256"></progress> step 256 of 256' in bar["data"]["text/html"]
    assert "step 256: evaluation mean" in bar["data"]["text/html"]
    assert shown["data"]["text/plain"].startswith("done at 256 steps, ")
    assert count["data"]["text/plain"] == "['signal', []]"
