"""What every benchmark writes down beside its numbers, so that they can be judged and made again."""

from __future__ import annotations

import asyncio
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
MEASURED = ("rl_training", "flows", "configs", "benchmarks/**/*.py")
"""What `git_dirty` is about: the results themselves are written while others are still being made."""


def provenance() -> dict[str, Any]:
    """Returns the command, the versions, the commit and the machine."""
    return {
        "command": shlex.join(["python", *_program(), *sys.argv[1:]]),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--", *MEASURED)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": {"platform": platform.platform(), "cpu": _cpu_model(), "cpus": usable_cpus()},
    }


def usable_cpus() -> int:
    """Returns how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(home: Path) -> dict[str, str]:
    """Returns the environment variables of a measured process: one thread, a home of its own, no MLflow server.

    Args:
        home: `RL_TRAINING_HOME`.
    """
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RL_TRAINING_HOME": str(home)}
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"} | own


def run_json(arguments: list[str], home: Path) -> dict[str, Any]:
    """Runs one command and waits for it; see `run_json_beside`."""
    return asyncio.run(run_json_beside(arguments, home))


async def run_json_beside(arguments: list[str], home: Path, cwd: Path = ROOT) -> dict[str, Any]:
    """Runs a Python command with one thread and a home of its own; returns the JSON on its last line.

    Others may run beside it. Cancelled, it ends the command first.

    Args:
        arguments: What follows `python`.
        home: `RL_TRAINING_HOME` of the command.
        cwd: The directory in which it runs.

    Raises:
        RuntimeError: The command failed; the message ends with what it wrote to stderr.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment(home), cwd=cwd, stdout=pipe, stderr=pipe
    )
    try:
        stdout, stderr = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.communicate()
        raise
    if process.returncode != 0:
        text = stderr.decode(errors="replace")[-1500:]
        raise RuntimeError(f"{shlex.join(arguments)} ended with exit code {process.returncode}:\n{text}")
    result: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return result


def write_json(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes `NAME.json`, whole or not at all, with each list of numbers on one line; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(_readable(result) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def _readable(value: Any, margin: str = "") -> str:
    inner = margin + "  "
    if isinstance(value, dict) and value:
        items = [f"{inner}{json.dumps(key)}: {_readable(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + margin + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(inner + _readable(item, inner) for item in value) + "\n" + margin + "]"
    return json.dumps(value, allow_nan=False)


def config_name(config: str) -> str:
    """Returns a file name's worth of a config's path: `configs/ppo/cartpole.yaml` is `ppo-cartpole`."""
    path = Path(config)
    return f"{path.parent.name}-{path.stem}" if path.parent.name else path.stem


def _program() -> list[str]:
    """Returns the module or the script that this process runs."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return ["-m", spec.name] if spec is not None else sys.argv[:1]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
