"""Promotion on a real MLflow server: two at once, a process that is killed in between, and requests over HTTP."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow_server import Server, free_port
from mlflow_store import GOOD, WEAK, run_with_policy
from waiting import wait_for

from benchmarks.promotion.promotion_pairs import compete, holds
from rl_training.api.promotion import promote_candidate
from rl_training.promotion.model_registry import get_champion
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking.mlflow_store import connect

pytestmark = pytest.mark.services

MODEL = "CartPole-v1"
RULES = ["promotion.episodes=20"]
NO_PICKLE = {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}


@pytest.fixture(scope="module")
def server(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("promotion")
    (home / "mlflow.db").write_bytes(store_template.read_bytes())
    server = Server(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(home))
        patch.setenv("MLFLOW_TRACKING_URI", server.uri)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="module")
def champion(server: Server) -> str:
    """The run of a champion on the server."""
    _, run_id = run_with_policy(GOOD, uri=server.uri)
    assert promote_candidate(run_id, RULES).alias == "champion"
    return run_id


def test_of_two_processes_at_once_the_better_is_champion(server):
    """A small version of `benchmarks/promotion/promotion_pairs.py`, which plays 20 pairs: one pair with each first."""
    result = compete(server.uri, server.folder, 2)
    assert holds(result), result["played"]
    worse_first, better_first = result["played"]
    assert {pair["better"]["verdict"] for pair in (worse_first, better_first)} == {"PROMOTE"}
    for pair in (worse_first, better_first):  # the second version was played against the first one
        second = "worse" if pair["better"]["against"] == "base" else "better"
        first = {"worse": "better", "better": "worse"}[second]
        assert (pair[first]["against"], pair[second]["against"]) == ("base", first)
        assert pair[second]["against_mean"] > 15.0  # nobody was judged against the champion before last
        assert pair["seen"] == (["base", "better"] if second == "worse" else ["base", "worse", "better"])


def test_a_decision_that_was_killed_before_the_alias_is_finished(store_template, tmp_path, monkeypatch):
    """SIGKILL between the record and the alias: the next promotion completes it and plays no episode."""
    (tmp_path / "mlflow.db").write_bytes(store_template.read_bytes())
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = connect(embedded_tracking_uri())
    _, run_id = run_with_policy(WEAK)
    killed = f"""
        import os, signal
        from mlflow.tracking import MlflowClient
        from rl_training.api.promotion import promote_candidate

        set_alias = MlflowClient.set_registered_model_alias

        def killed(self, name, alias, version):
            if alias == "champion":
                os.kill(os.getpid(), signal.SIGKILL)
            set_alias(self, name, alias, version)

        MlflowClient.set_registered_model_alias = killed
        promote_candidate({run_id!r}, {RULES!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(killed)], check=False, timeout=180)
    assert done.returncode == -signal.SIGKILL
    assert get_champion(client, MODEL) is None
    (decision,) = [tag for tag in client.get_model_version(MODEL, "1").tags if tag.startswith("decision.")]
    (record,) = client.list_artifacts(run_id, "promotions")

    command = [sys.executable, "-m", "rl_training", "promote", run_id, "--set", RULES[0], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    result = json.loads(done.stdout)
    assert (result["verdict"], result["alias"], f"decision.{result['decision_id']}") == (
        "PROMOTE",
        "champion",
        decision,
    )
    assert get_champion(client, MODEL).version == 1
    assert client.list_artifacts(run_id, "promotions") == [record]


def test_the_champion_is_loaded_by_its_alias_and_acts_in_the_environment(server, champion, monkeypatch):
    for name, value in NO_PICKLE.items():
        monkeypatch.setenv(name, value)
    model = mlflow.pyfunc.load_model(f"models:/{MODEL}@champion")  # of MLFLOW_TRACKING_URI
    assert play_one_episode(lambda observation: model.predict(observation[None])[0]) == 500.0


def test_the_champion_is_served_over_http(server, champion, tmp_path):
    """Serves with `mlflow models serve`, as the page says, on a local port."""
    port = free_port()
    words = ["models", "serve", "--model-uri", f"models:/{MODEL}@champion", "--env-manager", "local"]
    log = tmp_path / "served.log"
    with log.open("wb") as file:
        served = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **NO_PICKLE, "MLFLOW_DISABLE_TELEMETRY": "true"},
            cwd=tmp_path,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        wait_for(lambda: answers(port) or served.poll() is not None, 300)
        assert served.poll() is None, log.read_text()
        assert ask(port, {"inputs": [[0.01, 0.0, -0.02, 0.0], [0.0, 0.0, 0.1, 0.3]]}) == {"predictions": [0, 1]}
        with pytest.raises(urllib.error.HTTPError) as error:
            ask(port, {"inputs": [[0.01, 0.0, -0.02]]})
        assert "Shape of input (1, 3) does not match expected shape (-1, 4)" in error.value.read().decode()
    finally:
        if served.poll() is None:
            os.killpg(served.pid, signal.SIGKILL)
            served.wait()


def play_one_episode(act) -> float:
    import gymnasium as gym

    env, total, done = gym.make(MODEL), 0.0, False
    observation, _ = env.reset(seed=0)
    while not done:
        action = act(observation)
        assert isinstance(action, np.int64)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + reward, terminated or truncated
    env.close()
    return total


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def ask(port: int, body: dict) -> dict:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
