"""Same results: twelve short runs of this code and of an earlier commit's must be the same, bit for bit.

A change that moves code about must change no number. Each run is trained by the command line of both checkouts, in
processes of its own; some are stopped by SIGTERM and resumed. Metrics, evaluations, the final policy, and the whole
final training state are compared by `run_comparison`, with this code, so the earlier checkpoints are also read by it.

    git worktree add ../earlier COMMIT
    python -m benchmarks.resume.same_results ../earlier
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.provenance import ROOT, environment, provenance, write_json
from benchmarks.resume.cases import ALGORITHMS, COMMON, NORMALISED
from benchmarks.resume.run_comparison import differences

IMAGES: dict[str, Any] = {
    "env_kwargs": {"continuous": False},
    "wrappers": [
        {"name": "GrayscaleObservation"},
        {"name": "FrameStackObservation", "kwargs": {"stack_size": 2}},
    ],
    "evaluation": {"every": 160, "episodes": 1, "num_envs": 1, "max_episode_steps": 40},
}
"""CarRacing in shades of grey, two frames to an observation."""

CASES: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "ppo-discrete-sync": ("ppo", "CartPole-v1", {}, False),
    "ppo-continuous-normalised": ("ppo", "Pendulum-v1", NORMALISED, False),
    "ppo-image": ("ppo", "CarRacing-v3", IMAGES, False),
    "ppo-split": ("ppo", "Acrobot-v1", {"vectorization": "split"}, False),
    "ppo-async-normalised-resumed": ("ppo", "LunarLander-v3", {"vectorization": "async", **NORMALISED}, True),
    "dqn-discrete-sync": ("dqn", "CartPole-v1", {}, False),
    "dqn-image-resumed": ("dqn", "CarRacing-v3", IMAGES, True),
    "dqn-split-n-step": ("dqn", "MountainCar-v0", {"vectorization": "split", "n_step": 3}, False),
    "dqn-async-normalised": ("dqn", "LunarLander-v3", {"vectorization": "async", **NORMALISED}, False),
    "sac-continuous-sync": ("sac", "Pendulum-v1", {}, False),
    "sac-split-normalised-resumed": ("sac", "HalfCheetah-v5", {"vectorization": "split", **NORMALISED}, True),
    "sac-async-n-step": ("sac", "LunarLanderContinuous-v3", {"vectorization": "async", "n_step": 5}, False),
}
"""Algorithm, environment, settings, and whether the run is stopped and resumed."""

STOP_AT = 150
"""The step on record at which a run is stopped."""


def train(checkout: Path, config: Path, home: Path, *, stop: bool) -> dict[str, Any]:
    """Trains with the code of a checkout; returns the run's summary."""
    command = [sys.executable, "-m", "rl_training"]
    flags = ["--no-track", "--json"]
    run_dir = home / "run"
    own = {
        "env": {**environment(home), "PYTHONPATH": str(checkout)},
        "cwd": checkout,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    process = subprocess.Popen(
        [*command, "train", "--config", str(config), "--set", f"run_dir={run_dir}", *flags], **own
    )
    if stop:
        while process.poll() is None and recorded_step(run_dir) < STOP_AT:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
    output, errors = process.communicate()
    if process.returncode == 75:
        output = subprocess.run([*command, "resume", str(run_dir), *flags], check=True, **own).stdout
    elif process.returncode != 0:
        raise SystemExit(f"{config.name} failed in {checkout}: exit code {process.returncode}\n{errors}")
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    return summary | {"resumed": process.returncode == 75}


def recorded_step(run_dir: Path) -> int:
    """Returns the newest step in a run's metrics; 0 before there is one."""
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def compare(name: str, earlier: Path, folder: Path) -> dict[str, Any]:
    """Trains one case with both checkouts; returns what it came to."""
    algo, env_id, settings, stop = CASES[name]
    own = {
        "algo": algo,
        "env_id": env_id,
        "validation": {"episodes": 1, "max_steps": 50},
        "promotion": {"enabled": False},
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump({**COMMON, **own, **ALGORITHMS[algo], **settings}), encoding="utf-8")
    runs = {}
    for which, checkout in (("earlier", earlier), ("this", ROOT)):
        home = folder / which / name
        home.mkdir(parents=True)
        runs[which] = train(checkout, config, home, stop=stop)
    differ = differences(folder / "earlier" / name / "run", folder / "this" / name / "run")
    return {
        "case": name,
        "resumed": [run["resumed"] for run in runs.values()],
        "policy_sha256": sorted({run["policy_sha256"] for run in runs.values()}),
        "differences": differ,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare twelve short runs with those of an earlier commit.")
    parser.add_argument("earlier", type=Path, help="a checkout of that commit")
    parser.add_argument("--only", nargs="*", choices=CASES, help="some cases; writes no JSON")
    arguments = parser.parse_args()
    earlier = arguments.earlier.resolve()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=earlier, capture_output=True, text=True, check=True
    ).stdout
    results = []
    with tempfile.TemporaryDirectory(prefix="same-results-") as folder:
        for name in arguments.only or CASES:
            results.append(compare(name, earlier, Path(folder)))
            print(json.dumps(results[-1]), flush=True)
    same = sum(not result["differences"] for result in results)
    print(f"{same} of {len(results)} runs are the same")
    if not arguments.only:
        report = {"benchmark": "same-results", "earlier_commit": commit.strip(), "results": results, **provenance()}
        print(f"written: {write_json('same-results', report)}")
    sys.exit(same < len(results))


if __name__ == "__main__":
    main()
