"""What every benchmark writes down beside its numbers, so that they can be judged and made again."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "mlflow", "prefect")


def provenance() -> dict[str, Any]:
    """Returns the command, the versions, the commit and the machine."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": {"platform": platform.platform(), "cpu": _cpu_model(), "cpus": usable_cpus()},
    }


def usable_cpus() -> int:
    """Returns how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_json(arguments: list[str], home: Path) -> dict[str, Any]:
    """Runs a Python command with one thread and a home of its own; returns the JSON on its last line.

    Args:
        arguments: What follows `python`.
        home: `RL_TRAINING_HOME` of the command.

    Raises:
        RuntimeError: The command failed; the message ends with what it wrote to stderr.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "RL_TRAINING_HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(arguments)} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def write_json(name: str, result: dict[str, Any]) -> Path:
    """Writes `benchmarks/results/NAME.json` and returns its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def config_name(config: str) -> str:
    """Returns a file name's worth of a config's path: `configs/ppo/cartpole.yaml` is `ppo-cartpole`."""
    path = Path(config)
    return f"{path.parent.name}-{path.stem}" if path.parent.name else path.stem


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
