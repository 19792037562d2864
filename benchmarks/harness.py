"""Shared code of the benchmarks: running measured processes, timing methods, writing results and documentation."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.processor import describe_processor
from rl_training.system.durable_files import replace_file

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "mlflow", "prefect")
MEASURED = ("rl_training", "flows", "configs", "benchmarks/**/*.py")
"""Paths that decide `git_dirty`. The results are not among them, because they are written one after another."""


def collect_provenance() -> dict[str, Any]:
    """Returns what is needed to judge and repeat a result: the command, the versions, the commit and the machine."""
    return {
        "command": shlex.join(["python", *_find_program(), *sys.argv[1:]]),
        "git_commit": find_commit(ROOT),
        "git_dirty": bool(_run_git(ROOT, "status", "--porcelain", "--", *MEASURED)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": {"platform": platform.platform(), "cpus": count_cpus(), **describe_processor()},
    }


def count_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_commit(checkout: Path) -> str:
    """Returns the commit of a checkout."""
    return _run_git(checkout, "rev-parse", "HEAD")


def make_environment(home: Path) -> dict[str, str]:
    """Returns the environment variables of a measured process: one thread, its own home, and no MLflow server.

    Args:
        home: `RL_TRAINING_HOME` of the process.
    """
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RL_TRAINING_HOME": str(home)}
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"} | own


def run_json(arguments: Sequence[str], home: Path, **options: Any) -> dict[str, Any]:
    """Runs a Python command and waits for it, as `run_json_async` does."""
    return asyncio.run(run_json_async(arguments, home, **options))


async def run_json_async(
    arguments: Sequence[str],
    home: Path,
    cwd: Path = ROOT,
    *,
    variables: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
) -> dict[str, Any]:
    """Runs a Python command with one thread and its own home, and returns the JSON on the last line of its output.

    If the task is cancelled, it ends the command first.

    Args:
        arguments: The arguments of `python`.
        home: `RL_TRAINING_HOME` of the command.
        cwd: The working directory of the command.
        variables: Additional environment variables.
        python: The interpreter.

    Raises:
        RuntimeError: The command failed; the message ends with the end of its stderr.
    """
    pipe, environment = asyncio.subprocess.PIPE, make_environment(home) | dict(variables or {})
    process = await asyncio.create_subprocess_exec(
        python, *arguments, env=environment, cwd=cwd, stdout=pipe, stderr=pipe
    )
    try:
        stdout, stderr = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):  # it may just have ended
            process.terminate()
        await process.communicate()
        raise
    if process.returncode != 0:
        text = stderr.decode(errors="replace")[-1500:]
        raise RuntimeError(f"{shlex.join(arguments)} ended with exit code {process.returncode}:\n{text}")
    result: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return result


class Stopwatch:
    """Adds up the wall time that is spent in some methods; time in nested calls counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def watch(self, owner: Any, *names: str) -> None:
        """Times these methods of a class from now on."""
        for name in names:
            setattr(owner, name, self._time(getattr(owner, name)))

    def _time(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            began, self._depth = time.perf_counter(), self._depth + 1
            try:
                return method(*arguments, **options)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - began

        return timed


def record(benchmark: str, result: Mapping[str, Any], name: str | None = None) -> None:
    """Writes the result of a benchmark and its provenance to `NAME.json`, and prints the path.

    Args:
        benchmark: The name of the benchmark, which is also the name of the file unless `name` is given.
        result: The result.
        name: The name of the file.
    """
    print(f"written: {write_json(name or benchmark, {'benchmark': benchmark, **result, **collect_provenance()})}")


def write_json(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes `NAME.json` atomically, with each list of numbers on one line; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    replace_file(path, _format_json(result) + "\n")
    return path


def replace_block(page: str, name: str, text: str) -> str:
    """Returns a Markdown page with the text between `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- (?:/{name}|end) -->)", re.DOTALL)
    return block.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)


def update_file(path: Path, update: Callable[[str], str]) -> None:
    """Replaces the text of a file by what `update` returns for it."""
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"updated: {path}")


def format_row(cells: Sequence[str]) -> str:
    """Returns a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def name_config(config: str) -> str:
    """Returns a name for files from the path of a config: `configs/ppo/cartpole.yaml` becomes `ppo-cartpole`."""
    path = Path(config)
    return f"{path.parent.name}-{path.stem}" if path.parent.name else path.stem


def _format_json(value: Any, margin: str = "") -> str:
    inner = margin + "  "
    if isinstance(value, dict) and value:
        items = [f"{inner}{json.dumps(key)}: {_format_json(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + margin + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(inner + _format_json(item, inner) for item in value) + "\n" + margin + "]"
    return json.dumps(value, allow_nan=False)


def _find_program() -> list[str]:
    """Returns the module or the script that this process runs."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return ["-m", spec.name] if spec is not None else sys.argv[:1]


def _run_git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()
