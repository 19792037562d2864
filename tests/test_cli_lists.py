"""Training without a file, and the commands that list what there is."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow_store import ship_all, tracked_run
from waiting import LIMIT

from rl_training.cli.app import run
from rl_training.cli.list_commands import COLUMNS
from rl_training.config.shipped_configs import find_shipped_root
from rl_training.runs.locks import RunLock
from rl_training.tracking.json_files import write_json, write_status
from rl_training.tracking.metric_log import MetricLog

QUICK = ["--set", "evaluation.final_episodes=2", "--set", "num_envs=1", "--set", "rollout_steps=64"]
QUICK += ["--set", "batch_size=64", "--set", "epochs=1", "--no-track"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


def output(capfd: Any, *words: str) -> Any:
    """Runs a command and returns the object that it prints."""
    assert run([*words, "--json"]) == 0, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


def recorded(run_dir: str) -> dict[str, Any]:
    settings = yaml.safe_load((Path(run_dir) / "config.yaml").read_text())
    return {name: settings[name] for name in ("algo", "env_id", "total_timesteps", "seed")}


def test_a_run_needs_no_file(home: Path, capfd: Any) -> None:
    words = ["train", "--algo", "ppo", "--env", "case_envs:Plain-v0", "--timesteps", "1e2", "--seed", "7", *QUICK]
    summary = output(capfd, *words)
    assert recorded(summary["run_dir"]) == {
        "algo": "ppo",
        "env_id": "case_envs:Plain-v0",
        "total_timesteps": 100,
        "seed": 7,
    }
    assert summary["stop_reason"] == "completed"


def test_steps_and_seed_change_a_file_too(home: Path, capfd: Any) -> None:
    summary = output(capfd, "train", "--config", "ppo/cartpole", "--timesteps", "64", "--seed", "3", *QUICK)
    settings = recorded(summary["run_dir"])
    assert (settings["total_timesteps"], settings["seed"], settings["env_id"]) == (64, 3, "CartPole-v1")


@pytest.mark.slow
def test_a_flow_needs_no_file(home: Path, capfd: Any) -> None:
    quick = [word for word in QUICK if word != "--no-track"]
    words = ["flow", "train", "--env", "case_envs:Plain-v0", "--timesteps", "64", *quick]
    summary = output(capfd, *words, "--set", "promotion.enabled=false")
    assert recorded(summary["run_dir"])["env_id"] == "case_envs:Plain-v0"


def test_shipped_configs_are_listed(capfd: Any) -> None:
    listed = output(capfd, "configs")["configs"]
    assert {"name": "ppo/cartpole", "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000} in listed
    assert len(listed) == len(list(find_shipped_root().glob("*/*.yaml")))
    assert run(["configs"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "algo", "env", "steps"]
    assert "100,000" in next(line for line in lines if line.startswith("ppo/cartpole "))


def listed(capfd: Any, *words: str) -> list[dict[str, Any]]:
    return output(capfd, "runs", *words)["runs"]


def tracked(env_id: str, number: int, **settings: Any) -> Path:
    """The directory of a tracked run that was created on the given day of 2026-01."""
    run_dir = tracked_run(env_id=env_id, **settings)
    edit(run_dir / "metadata.json", started=f"2026-01-{number:02d}T10:00:00+00:00")
    return run_dir


def edit(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def ended(run_dir: Path, status: str, stop_reason: str | None, **evaluation: float) -> None:
    write_status(run_dir, status, stop_reason, None)
    if evaluation:
        write_json(run_dir / "artifacts" / "evaluation.json", evaluation)


def test_runs_of_the_home_are_listed_filtered_and_sorted(home: Path, capfd: Any, caplog: Any) -> None:
    assert listed(capfd) == []
    ended(tracked("CartPole-v1", 1, seed=4), "FINISHED", "completed", return_mean=150.0, success_rate=0.25)
    ended(tracked("case_envs:Plain-v0", 2), "FINISHED", "return_reached", return_mean=9.5)
    ended(tracked("CartPole-v1", 3), "KILLED", "signal")
    ended(tracked("CartPole-v1", 4), "FAILED", None)
    tracked("CartPole-v1", 5)  # its process ended without recording how
    running = tracked("Pendulum-v1", 6)
    with RunLock(running):
        runs = listed(capfd)
    assert [run["started"][8:10] for run in runs] == ["06", "05", "04", "03", "02", "01"]
    assert [run["state"] for run in runs] == ["running", "killed", "failed", "stopped", "finished", "finished"]
    last = runs[-1]
    assert (last["env_id"], last["algo"], last["seed"], last["return_mean"], last["success_rate"]) == (
        "CartPole-v1",
        "ppo",
        4,
        150.0,
        0.25,
    )
    assert [run["return_mean"] for run in listed(capfd, "--sort", "return")] == [150.0, 9.5, None, None, None, None]
    assert len(listed(capfd, "--env", "CartPole-v1")) == 4
    assert [run["env_id"] for run in listed(capfd, "--env", "Plain*")] == ["case_envs:Plain-v0"]
    assert [run["state"] for run in listed(capfd, "--state", "failed")] == ["failed"]
    assert listed(capfd, "--algo", "dqn") == []
    assert len(listed(capfd, "--limit", "2")) == 2
    with caplog.at_level(logging.INFO):
        assert run(["runs", "--limit", "1", "--sort", "return"]) == 0
    out, _ = capfd.readouterr()
    assert out.splitlines()[0].split() == list(COLUMNS)
    assert out.splitlines()[1].split()[1:] == [
        *("CartPole-v1", "ppo", "4", "-", "finished", "-", "150.0", "25%", "2026-01-01", "10:00")
    ]
    assert caplog.messages[-1] == "1 of 6 runs; --limit 6 lists all"


def test_a_run_without_tracking_is_finished_when_its_steps_are_done(home: Path, capfd: Any) -> None:
    words = ["--env", "case_envs:Plain-v0", "--timesteps", "64", *QUICK]
    summary = output(capfd, "train", *words)
    (run,) = listed(capfd)
    assert (run["state"], run["num_timesteps"], run["run_uid"]) == ("finished", 64, summary["run_uid"])
    assert run["return_mean"] == summary["evaluation"]["return_mean"]
    config = Path(run["run_dir"]) / "config.yaml"
    config.write_text(config.read_text().replace("total_timesteps: 64", "total_timesteps: 640"))
    assert [run["state"] for run in listed(capfd)] == ["stopped"]


def test_a_run_without_tracking_is_finished_when_its_return_was_reached(home: Path, capfd: Any) -> None:
    early = [f"evaluation.{setting}" for setting in ("every=64", "stop_at_return=-1e9", "stop_after=1")]
    words = ["--env", "case_envs:Plain-v0", "--timesteps", "640", *QUICK]
    summary = output(capfd, "train", *words, *(word for setting in early for word in ("--set", setting)))
    assert (summary["stop_reason"], summary["num_timesteps"]) == ("return_reached", 64)
    assert [(run["state"], run["num_timesteps"]) for run in listed(capfd)] == [("finished", 64)]


def test_one_damaged_run_leaves_the_others_listed(home: Path, capfd: Any, caplog: Any) -> None:
    ended(tracked("CartPole-v1", 1), "FINISHED", "completed")
    damage = {
        "metadata": lambda run_dir: (run_dir / "metadata.json").write_text("{"),
        "uid": lambda run_dir: edit(run_dir / "metadata.json", run_uid=3),
        "time": lambda run_dir: edit(run_dir / "metadata.json", started="yesterday"),
        "era": lambda run_dir: edit(run_dir / "metadata.json", started="0001-01-01T00:00:00+14:00"),
        "status": lambda run_dir: (run_dir / "status.json").write_text("[]"),
        "best": lambda run_dir: (
            (run_dir / "checkpoints").mkdir() or (run_dir / "checkpoints/best.json").write_text("1")
        ),
        "link": lambda run_dir: (run_dir / "status.json").symlink_to("/etc/hostname"),
        "evaluation": lambda run_dir: write_json(run_dir / "artifacts" / "evaluation.json", [1]),
    }
    for harm in damage.values():
        harm(tracked("CartPole-v1", 2))
    colours = tracked("CartPole-v1", 3)
    edit(colours / "metadata.json", env_id="\x1b[31mCartPole-v1\nnext", seed="1")
    ended(colours, "FINISHED", "completed")
    (home / "runs" / "a_file").touch()
    (home / "runs" / "an_empty_folder").mkdir()
    runs = listed(capfd)
    caplog.clear()
    assert [run["state"] for run in runs] == ["finished", "finished", *["unreadable"] * len(damage)]
    assert all(run["problem"] for run in runs[2:])
    assert sum("status.json" in run["problem"] for run in runs[2:]) == 2
    assert sum("evaluation.json" in run["problem"] for run in runs[2:]) == 1
    assert (runs[0]["env_id"], runs[0]["seed"]) == ("\\x1b[31mCartPole-v1 next", None)
    assert run(["runs"]) == 0
    out, _ = capfd.readouterr()
    assert len(out.splitlines()) == 1 + 2 + len(damage)
    assert len(caplog.messages) == len(damage)
    assert "\x1b" not in out + "".join(caplog.messages)


def write_best(run_dir: Path, text: str) -> None:
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "best.json").write_text(text)


def test_warnings_about_training_are_listed_with_the_state(client: Any, capfd: Any) -> None:
    warning = {"kind": "q_values_diverged", "since": 3, "step": 5, "seen": "1 to 900", "advice": "a lower tau"}
    bad, well = tracked_run(), tracked_run()
    edit(bad / "metadata.json", health=[warning])
    edit(well / "metadata.json", health=[])  # withdrawn
    for run_dir in (bad, well):
        write_status(run_dir, "FINISHED", "completed", None)
        ship_all(run_dir, status=lambda: json.loads((bad / "status.json").read_text()))
    for where in ([], ["--mlflow"]):
        health = {run["run_dir"]: run["health"] for run in listed(capfd, *where)}
        assert health == {str(bad): ["q_values_diverged"], str(well): []}
        assert run(["runs", *where]) == 0
        out, _ = capfd.readouterr()
        assert out.count("finished, q_values_diverged ") == 1


def test_runs_of_mlflow_are_listed(client: Any, capfd: Any) -> None:
    done = tracked_run(seed=2)
    log = MetricLog(done)
    log.log(100, {"heldout/return_mean": 12.5, "heldout/success_rate": 0.5}, "heldout")
    log.close()
    end = {"status": "FINISHED", "stop_reason": "completed", "error": None, "time": 1_800_000_000.0}
    address = ship_all(done, status=lambda: end).address
    ship_all(tracked_run(env_id="Pendulum-v1"))
    runs = listed(capfd, "--mlflow", "--sort", "return")
    assert [run["env_id"] for run in runs] == ["CartPole-v1", "Pendulum-v1"]
    first = runs[0]
    assert (first["run_id"], first["seed"], first["return_mean"], first["success_rate"]) == (
        address.run_id,
        2,
        12.5,
        0.5,
    )
    assert [run["state"] for run in runs] == ["finished", "running"]
    assert len(listed(capfd, "--mlflow", "--env", "Pendulum-v1")) == 1


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_a_completion_script_is_one_that_its_shell_reads(shell: str, check: str, tmp_path: Path, capfd: Any) -> None:
    assert run(["completion", shell]) == 0
    text = capfd.readouterr().out
    assert "rl-training" in text
    assert "enjoy" in text
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(text)
    subprocess.run([program, check, str(script)], check=True, timeout=LIMIT)


def test_bash_completes_commands_and_options(tmp_path: Path, capfd: Any) -> None:
    assert run(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capfd.readouterr().out)

    def complete(*words: str) -> set[str]:
        listed = " ".join(f"'{word}'" for word in words)
        code = (
            f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _rl_training; echo ${{COMPREPLY[@]}}"
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
        return set(done.stdout.split())

    assert complete("rl-training", "re") == {"record", "report", "reproduce", "restore", "resume"}
    assert complete("rl-training", "runs", "--st") == {"--state"}
    assert complete("rl-training", "runs", "--state", "f") == {"finished", "failed"}
    assert complete("rl-training", "flow", "ret") == {"retrain"}
