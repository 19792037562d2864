"""Describes the machine and what decides how its floating-point sums round, for the record of a run."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "MKL_CBWR")
"""Environment variables that choose threads or kernels of matrix products."""

_CPU_INFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Any]:
    """Returns the model of the CPU, the variables of `THREAD_VARIABLES` that are set, and the libraries of sums."""
    return {
        "cpu_model": _find_cpu_model(),
        "thread_variables": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        "libraries": _list_libraries(),
    }


@cache
def _find_cpu_model() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


@cache
def _list_libraries() -> list[str]:
    """Returns the libraries of threads and matrix products that are loaded, with version and kernel."""
    named = {
        " ".join(str(pool[key]) for key in ("internal_api", "version", "architecture") if pool.get(key))
        for pool in threadpool_info()
    }
    return sorted(named)
