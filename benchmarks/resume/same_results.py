"""Checks that twelve short runs have exactly the same results as with the code of an earlier commit.

A change that only moves code or adds a feature must not change any number of a run that does not use the feature; what
such runs record in addition is listed. Each run is trained by the command line of both checkouts, in
its own processes; some are stopped by SIGTERM and resumed. `run_comparison` compares metrics, evaluations, the final
policy and the complete final training state. It uses this code, so it also checks that the earlier checkpoints can be
read.

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

from benchmarks.harness import ROOT, find_commit, make_environment, record
from benchmarks.resume.cases import ALGORITHMS, COMMON, NORMALISED
from benchmarks.resume.run_comparison import find_differences
from benchmarks.resume.strikes import read_newest_step

IMAGES: dict[str, Any] = {
    "env_kwargs": {"continuous": False},
    "wrappers": [{"name": "GrayscaleObservation"}, {"name": "FrameStackObservation", "kwargs": {"stack_size": 2}}],
    "evaluation": {"every": 160, "episodes": 1, "num_envs": 1, "max_episode_steps": 40},
}
"""CarRacing in shades of gray, with two frames per observation."""

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
    "sac-async": ("sac", "LunarLanderContinuous-v3", {"vectorization": "async"}, False),
}
"""The algorithm, environment and settings of each case, and whether the run is stopped and resumed."""

STOP_AT = 150
"""The recorded step from which on a run is stopped."""


def train(checkout: Path, config: Path, home: Path, *, stop: bool) -> dict[str, Any]:
    """Trains with the code of a checkout, and returns the run's summary."""
    run_dir, pipe = home / "run", subprocess.PIPE
    environment = {**make_environment(home), "PYTHONPATH": str(checkout)}

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rl_training", *words, "--no-track", "--json"]
        return subprocess.Popen(command, env=environment, cwd=checkout, stdout=pipe, stderr=pipe, text=True)

    process = start("train", "--config", str(config), "--set", f"run_dir={run_dir}")
    if stop:
        while process.poll() is None and read_newest_step(run_dir) < STOP_AT:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
    output, errors = process.communicate()
    if resumed := process.returncode == 75:
        process = start("resume", str(run_dir))
        output, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{config.name} failed in {checkout}: exit code {process.returncode}\n{errors}")
    return {**json.loads(output.splitlines()[-1]), "resumed": resumed}


def compare(name: str, earlier: Path, folder: Path) -> dict[str, Any]:
    """Trains one case with both checkouts, and returns the comparison."""
    algo, env_id, settings, stop = CASES[name]
    rules = {"validation": {"episodes": 1, "max_steps": 50}, "promotion": {"enabled": False}}
    config, own = folder / f"{name}.yaml", {"algo": algo, "env_id": env_id}
    config.write_text(yaml.safe_dump(COMMON | rules | ALGORITHMS[algo] | settings | own), encoding="utf-8")
    runs = {}
    for which, checkout in (("earlier", earlier), ("this", ROOT)):
        home = folder / which / name
        home.mkdir(parents=True)
        runs[which] = train(checkout, config, home, stop=stop)
    added: set[str] = set()
    differences = find_differences(*(folder / which / name / "run" for which in runs), added)
    return {
        "case": name,
        "resumed": [run["resumed"] for run in runs.values()],
        "policy_sha256": sorted({run["policy_sha256"] for run in runs.values()}),
        "differences": differences,
        "added": sorted(added),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare twelve short runs with those of an earlier commit.")
    parser.add_argument("earlier", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--only", nargs="*", choices=CASES, help="only these cases; writes no JSON")
    arguments = parser.parse_args()
    earlier = arguments.earlier.resolve()
    results = []
    with tempfile.TemporaryDirectory(prefix="same-results-") as folder:
        for name in arguments.only or CASES:
            results.append(compare(name, earlier, Path(folder)))
            print(json.dumps(results[-1]), flush=True)
    same = sum(not result["differences"] for result in results)
    print(f"{same} of {len(results)} runs are the same")
    if not arguments.only:
        record("same-results", {"earlier_commit": find_commit(earlier), "results": results})
    sys.exit(same < len(results))


if __name__ == "__main__":
    main()
