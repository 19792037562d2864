"""The command line from outside: stdout, stderr, exit codes, and files on disk."""

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tiny_tasks import SMALL
from waiting import LIMIT

from rl_training.cli.app import run
from rl_training.cli.output import log_to_stderr
from rl_training.errors import CheckpointNotWritten, EnvironmentFault, RunFailed, find_user_code_cause

ROOT = Path(__file__).resolve().parents[1]

SUMMARY_KEYS = {
    "run_id",
    "run_uid",
    "run_dir",
    "checkpoint",
    "num_timesteps",
    "stop_reason",
    "steps_per_second",
    "cpu_seconds",
    "policy_sha256",
    "evaluation",
}


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The directory of a run of `SMALL` that is complete."""
    home = tmp_path_factory.mktemp("trained")
    config = home / "small.yaml"
    config.write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(home))
        assert run(["train", "--config", str(config), "--no-track"]) == 0
    (run_dir,) = (home / "runs").iterdir()
    return run_dir


@pytest.fixture
def own_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


def command(*words: object) -> tuple[int, str, str]:
    """Runs `rl-training` in a process of its own; returns the exit code, stdout and stderr."""
    arguments = [sys.executable, "-m", "rl_training", *map(str, words)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout, done.stderr


def only_json(stdout: str) -> dict:
    """Returns the JSON object that is all of stdout."""
    (line,) = stdout.splitlines()
    return json.loads(line)


# Errors of a user's making: exit code 2, a few lines on stderr, nothing on stdout, no traceback, nothing made.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], 'Unknown command "trian". Did you mean "train"?'),
        (["train"], "got no settings, expected --config FILE"),
        (["flow", "train"], "got no settings, expected --config FILE"),
        (["train", "--config", "ppo/cartpole", "--env", "CartPole-v1"], "got --config and --env, expected one"),
        (["train", "--config", "ppo/cartpole", "--algo", "dqn"], "got --config and --algo, expected one"),
        (["flow", "train", "--config", "ppo/cartpole", "--env", "X-v0"], "got --config and --env, expected one"),
        (["train", "--env", "CartPole-v1"], "got --env CartPole-v1 without --timesteps"),
        (["train", "--env", "CartPole-v1", "--timesteps", "many"], "total_timesteps: got"),
        (["train", "--env", "CartPole-v1", "--timesteps", "100", "--algo", "pppo"], "did you mean ppo?"),
        (["train", "--env", "CartPole-v1", "--timesteps", "100", "--set", "sead=1"], "did you mean seed?"),
        (["train", "--confg", "x.yaml"], "Did you mean --config"),
        (["train", "--config", "no_such.yaml"], "no_such.yaml: no such file"),
        (["train", "--config", "ppo/cartpol"], "did you mean ppo/cartpole?"),
        (["train", "--config", "ppo/cartpole", "--set", "learing_rate=1"], "did you mean learning_rate?"),
        (["train", "--config", "ppo/cartpole", "--set", "seed"], "seed"),
        (
            ["train", "--config", "ppo/cartpole", "--set", "batch_size=1000"],
            "batch_size: got 1000, expected at most num_envs * rollout_steps = 8 * 32 = 256",
        ),
        (["validate-env"], "either ENV_ID or --config"),
        (["validate-env", "CartPole-v1", "--config", "ppo/cartpole"], "either ENV_ID or --config"),
        (["validate-env", "CartPole-v1", "--algo", "pppo"], "pppo"),
        (["evaluate", "no/such/place"], "no/such/place"),
        (["evaluate", str(ROOT / "tests")], "tests holds no run and no checkpoint"),
        (["evaluate", "no/such/place", "--episodes", "0"], "--episodes"),
        (["resume", "no/such/place"], "no/such/place"),
        (["sync", "no/such/place"], "no/such/place"),
    ],
)
def test_user_error_is_exit_code_2_and_a_few_lines(words, says, own_home, capfd):
    assert run(words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 4
    assert not list(own_home.glob("runs/*"))


@pytest.mark.parametrize("words", [("train", "--no-track"), ("train",), ("flow", "train")])
@pytest.mark.parametrize("place", ["a_file", "a_file/below", "/proc/here"])
def test_home_that_cannot_be_written_is_one_line(words, place, config, tmp_path, monkeypatch, capfd):
    (tmp_path / "a_file").touch()
    home = tmp_path / place
    monkeypatch.setenv("RL_TRAINING_HOME", str(home))
    assert run([*words, "--config", str(config)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: the home of rl_training can't be used: {home}: ")
    assert line.endswith("; set RL_TRAINING_HOME to a folder that can be written")


@pytest.mark.slow
def test_mlflow_that_is_away_is_reported_before_training_and_leaves_no_run(config, own_home, monkeypatch, capfd):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert run(["train", "--config", str(config)]) == 2
    *_, reason, advice = capfd.readouterr().err.splitlines()
    assert reason == f"error: MLflow at {uri} can't be used: connection refused"
    assert "--offline" in advice
    assert not list((own_home / "runs").iterdir())

    assert run(["train", "--config", str(config), "--offline", "--json"]) == 0
    run_dir = only_json(capfd.readouterr().out)["run_dir"]
    assert run(["sync", run_dir]) == 2
    assert capfd.readouterr().err == f"error: MLflow at {uri} can't be used: connection refused\n"


def test_every_fault_of_a_config_is_shown_with_its_line(config, own_home, capfd):
    config.write_text(SMALL + "learing_rate: 1e-3\ngamma: 2\n")
    assert run(["train", "--config", str(config)]) == 2
    err = capfd.readouterr().err
    assert f"{config}:12: learing_rate" in err
    assert f"{config}:13: gamma" in err


def test_refused_environment_starts_no_run(config, own_home, capfd):
    words = ["train", "--config", str(config), "--set", "env_id=case_envs:NoneReward-v0", "--no-track"]
    assert run(words) == 2
    err = capfd.readouterr().err
    assert "reward" in err
    assert "Traceback" not in err
    assert not list(own_home.glob("runs/*"))


# Results.


def test_algorithms(capfd):
    assert run(["algorithms", "--json"]) == 0
    assert "ppo" in only_json(capfd.readouterr().out)["algorithms"]


def test_validate_env_reports_on_stdout(capfd):
    assert run(["validate-env", "CartPole-v1", "--json"]) == 0
    report = only_json(capfd.readouterr().out)
    assert report["env_id"] == "CartPole-v1"
    assert report["episodes_played"] == 2
    assert [finding for finding in report["findings"] if finding["severity"] == "fatal"] == []


@pytest.mark.parametrize(
    ("env_id", "says"), [("case_envs:NoneReward-v0", "reward"), ("no_such_mod:X-v0", "no module named 'no_such_mod'")]
)
def test_validate_env_of_a_bad_one_is_exit_code_2_with_findings(env_id, says, capfd):
    assert run(["validate-env", env_id]) == 2
    verdict, finding = capfd.readouterr().out.splitlines()
    assert verdict.startswith(f"environment {env_id} is refused: 1 fatal, 0 warnings")
    assert finding.startswith("fatal: ")
    assert says in finding


def test_train_evaluate_and_resume(config, own_home):
    code, out, err = command("train", "--config", config, "--set", "seed=3", "--no-track", "--json")
    assert code == 0, err
    trained = only_json(out)
    assert set(trained) >= SUMMARY_KEYS
    assert trained["run_id"] is None
    assert trained["num_timesteps"] == 256
    assert trained["stop_reason"] == "completed"
    assert trained["evaluation"]["episodes"] == 5
    assert trained["evaluation"]["ci_low"] <= trained["evaluation"]["return_mean"] <= trained["evaluation"]["ci_high"]
    run_dir = Path(trained["run_dir"])
    assert run_dir.is_relative_to(own_home)
    assert Path(trained["checkpoint"]) == run_dir / "checkpoints" / "step_000000000256"
    # What a person reads on the way: where things are, the resolved settings, and how far it is, in plain lines.
    assert f"home: {own_home}" in err
    assert f"run directory: {run_dir}" in err
    assert "seed: 3" in err
    assert "step 128: evaluation mean" in err
    assert "step 256 of 256" in err
    assert "\x1b[" not in err
    # The held-out evaluation is part of the run's record.
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (held_out,) = [line for line in lines if line["event"] == "heldout"]
    assert held_out["metrics"]["heldout/return_mean"] == trained["evaluation"]["return_mean"]
    record = json.loads((run_dir / "artifacts" / "evaluation.json").read_text())
    assert sum(record["returns"]) / 5 == trained["evaluation"]["return_mean"]

    code, out, err = command("evaluate", run_dir, "--json")
    assert code == 0, err
    evaluated = only_json(out)
    assert {"checkpoint": trained["checkpoint"], **evaluated["evaluation"]} == trained["evaluation"]
    assert evaluated["policy_sha256"] == trained["policy_sha256"]
    assert evaluated["run_uid"] == trained["run_uid"]

    code, out, err = command("resume", run_dir, "--set", "total_timesteps=384", "--no-track", "--json")
    assert code == 0, err
    resumed = only_json(out)
    assert resumed["num_timesteps"] == 384
    assert resumed["run_uid"] != trained["run_uid"]  # a changed setting is a fork
    assert resumed["policy_sha256"] != trained["policy_sha256"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algo=dqn", "algo: 'ppo' -> 'dqn' (must be equal)"),
        ("num_envs=1", "num_envs: 2 -> 1 (must be equal)"),  # and with it batch_size can't be 64
        ("env_id=case_envs:NanEarly-v0", "env_id: 'case_envs:Plain-v0' -> 'case_envs:NanEarly-v0' (must be equal)"),
        ("total_timesteps=128", "total_timesteps: 256 -> 128 (may grow)"),
        ("device=cuda:9", "device: got cuda:9, and torch sees "),
        ("gamma=2", "gamma: 0.99 -> 2.0 (must be equal)"),
        ("evaluation.episodes=0", "--set evaluation.episodes: got 0, expected "),
        ("gama=0.5", "did you mean gamma?"),
    ],
)
def test_refused_resume_is_one_line_before_the_environment_is_played(
    override, says, trained, monkeypatch, capfd, caplog
):
    monkeypatch.setenv("RL_TRAINING_HOME", str(trained.parents[1]))
    assert run(["resume", str(trained), "--no-track", "--set", override]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert "can be trained on" not in caplog.text
    assert [path for path in trained.parent.iterdir() if path.name.startswith("Plain")] == [trained]


def test_complete_run_says_so_and_succeeds(config, own_home, capfd, caplog):
    assert run(["train", "--config", str(config), "--no-track", "--json"]) == 0
    trained = only_json(capfd.readouterr().out)
    assert run(["resume", trained["run_dir"], "--no-track", "--json"]) == 0
    assert "complete at 256 of 256 steps" in caplog.text
    again = only_json(capfd.readouterr().out)
    same = ("run_uid", "policy_sha256", "num_timesteps", "evaluation")
    assert [again[key] for key in same] == [trained[key] for key in same]


def test_without_json_the_result_is_for_people(config, own_home, capfd):
    assert run(["train", "--config", str(config), "--no-track"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith("done at 256 steps, ")
    assert out[1].startswith("mean return ")
    assert "over 5 held-out episodes" in out[1]
    assert out[2].startswith(f"run directory: {own_home}")


def test_tracked_run_is_in_mlflow(config, home, client):
    code, out, err = command("train", "--config", config, "--json")
    summary = only_json(out)
    if summary["unsent"]:  # a busy machine has not sent all files within the limit
        assert code == 1
        assert f"`rl-training sync {summary['run_dir']}` sends the rest" in summary["unsent"]
        assert command("sync", summary["run_dir"])[0] == 0
    else:
        assert code == 0, err
    mlflow_run = client.get_run(summary["run_id"])
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.tags["run_uid"] == summary["run_uid"]
    assert mlflow_run.data.metrics["heldout/return_mean"] == summary["evaluation"]["return_mean"]
    assert f"RL_TRAINING_HOME={home} rl-training ui {summary['run_id']}" in err


def test_warning_is_shown_once_on_one_line_without_colours(capfd):
    log_to_stderr()
    for line in (1, 2):
        warnings.showwarning(
            UserWarning("\x1b[33mWARN: Box low's precision\n lowered\x1b[0m"), UserWarning, "box.py", line
        )
    assert capfd.readouterr().err == "UserWarning: Box low's precision lowered (box.py:1)\n"


# Ends that are no success.


@pytest.mark.parametrize("vectorization", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_run_that_breaks_is_exit_code_1(vectorization, config, own_home):
    code, out, err = command(
        "train",
        "--config",
        config,
        "--set",
        "env_id=case_envs:RaisesLate-v0",
        "--set",
        "total_timesteps=4000",
        "--set",
        f"vectorization={vectorization}",
        "--no-track",
    )
    assert (code, out) == (1, "")
    *frames, cause, error = err.splitlines()
    assert frames[-1].strip() == 'raise RuntimeError("sensor 3 returned no frame")'
    assert cause == "RuntimeError: sensor 3 returned no frame"  # the end of a traceback into the environment's code
    assert error.startswith("error: environment case_envs:RaisesLate-v0 (index ")
    assert "its step 700" in error
    *_, newest = sorted((own_home / "runs").glob("*/checkpoints/step_*"))
    assert f"the run has failed; its newest checkpoint is {newest}" in err.splitlines()


def test_traceback_is_of_the_users_own_code_or_none():
    fault = EnvironmentFault("reward is nan")
    retried = RunFailed("no new checkpoint")
    retried.__cause__ = fault
    assert find_user_code_cause(retried) is None
    fault.__cause__ = theirs = RuntimeError("sensor 3 returned no frame")
    assert find_user_code_cause(retried) is find_user_code_cause(fault) is theirs
    full = CheckpointNotWritten("step_000000000064 can't be written: No space left on device")
    full.__cause__ = OSError(28, "No space left on device")
    assert find_user_code_cause(full) is None


def test_stopped_by_sigterm_is_75_and_resumable(config, own_home):
    config.write_text(SMALL.replace("total_timesteps: 256", "total_timesteps: 6_000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", "train", "--config", str(config), "--no-track", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "evaluation mean" in line:
            break
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)  # while the interpreter leaves
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, err
    stopped = only_json(line + out)
    assert stopped["stop_reason"] == "signal"
    assert 128 <= stopped["num_timesteps"] < 6_000
    assert stopped["evaluation"] is None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    code, out, err = command("resume", stopped["run_dir"], "--no-track", "--json")
    assert code == 0, err
    resumed = only_json(out)
    assert (resumed["num_timesteps"], resumed["run_uid"]) == (6_000, stopped["run_uid"])
