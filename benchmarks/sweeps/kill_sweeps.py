"""Strikes sweeps at random moments, and compares their final tables with those of undisturbed ones.

A strike is a SIGKILL of the driver, a SIGKILL of a trial, or the end of all connections of the study database, which is
a PostgreSQL server of its own. The driver is started again with the same command each time. A sweep that ends before
all strikes is followed by another one. The final tables (points, scores, states, evaluations, policies) must be equal.

    python -m benchmarks.sweeps.kill_sweeps --kills 40
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import record
from benchmarks.sweeps.struck_sweep import Kind, Strike, StruckSweep, list_table
from benchmarks.sweeps.study_server import StudyServer

KINDS: tuple[Kind, ...] = ("driver", "trial", "connection")
LONGEST_DELAY = 12.0
"""Longest time between two strikes in seconds: a driver and its trials take some seconds to start."""

BASE: dict[str, Any] = {
    "config": "ppo/cartpole",
    "overrides": {
        "total_timesteps": 60_000,
        "evaluation": {"every": 10_000, "episodes": 5, "final_episodes": 10, "video": False},
        "checkpoint": {"every": 5_000},
    },
    "space": {"learning_rate": {"log_range": [1e-4, 1e-2]}, "gamma": {"choice": [0.95, 0.98, 0.99]}},
    "trials": 9,
    "parallel": 3,
    "confirmation": {"points": 1, "seeds": 2},
}
SWEEPS: dict[str, dict[str, Any]] = {
    "random": {**BASE, "method": "random"},
    "tpe": {**BASE, "method": "tpe", "pruning": {"after_trials": 3}},
    "halving": {**BASE, "method": {"name": "halving", "eta": 3, "rungs": 2}},
}


def main() -> None:
    """Strikes each sweep, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="strikes, shared out among the methods")
    parser.add_argument("--seed", type=int, default=0, help="seed of the strikes")
    parser.add_argument("--methods", nargs="+", choices=SWEEPS, default=list(SWEEPS), help="methods (default: all)")
    parser.add_argument("--timesteps", type=int, help="steps of each run")
    arguments = parser.parse_args()
    rng, results = np.random.default_rng(arguments.seed), {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = StudyServer(Path(folder) / "postgres")
        try:
            for i, method in enumerate(arguments.methods):
                share = len(range(i, arguments.kills, len(arguments.methods)))
                settings = dict(SWEEPS[method])
                if arguments.timesteps is not None:
                    settings["overrides"] = settings["overrides"] | {"total_timesteps": arguments.timesteps}
                results[method] = measure(method, settings, share, Path(folder), server, rng)
                print(method, {name: value for name, value in results[method].items() if name != "table"}, flush=True)
        finally:
            server.stop()
    kills = sum(sum(result["strikes"].values()) for result in results.values())
    record("sweep-kills", {"kills": kills, "equal": all(result["equal"] for result in results.values()), **results})


def measure(
    method: str, settings: dict[str, Any], kills: int, folder: Path, server: StudyServer, rng: np.random.Generator
) -> dict[str, Any]:
    """Returns how the struck sweeps of one method compare with the undisturbed one."""
    file = folder / f"{method}.yaml"
    file.write_text(yaml.safe_dump(settings))
    table = list_table(StruckSweep(file, folder / f"{method}-undisturbed", options=["--no-track"]).run([]))
    strikes, starts, unequal, sweeps = Counter[str](), 0, [], 0
    while (left := kills - strikes.total()) > 0:
        sweeps += 1
        sweep = StruckSweep(file, folder / f"{method}-{sweeps}", server, ["--no-track", "--new"])
        kinds = [KINDS[(strikes.total() + i) % len(KINDS)] for i in range(left)]
        found = list_table(sweep.run([Strike(kind, float(rng.uniform(0, LONGEST_DELAY))) for kind in kinds]))
        strikes.update(sweep.struck)
        starts += sweep.starts
        unequal += [{"sweep": sweeps, "got": a, "expected": b} for a, b in zip(found, table, strict=True) if a != b]
    return {
        "strikes": dict(strikes),
        "sweeps": sweeps,
        "drivers": starts,
        "equal": not unequal,
        "unequal": unequal,
        "table": table,
    }


if __name__ == "__main__":
    main()
