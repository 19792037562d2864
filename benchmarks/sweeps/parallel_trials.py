"""Measures how much faster trials are two at a time than one after the other, and that their results are the same.

A sweep over 16 learning rates, with one thread a trial, runs once with rounds of one trial and once with one round of
all, which the local engine runs as many at once as there are CPUs. Then each trial is trained alone by
`rl_training.train`, and its policy is compared. Other load on the machine makes the ratio smaller.

    python -m benchmarks.sweeps.parallel_trials --timesteps 1500000
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import count_cpus, record, run_json
from benchmarks.sweeps.struck_sweep import StruckSweep

ALONE = """
import json, sys
import rl_training
settings = json.loads(sys.argv[1])
summary = rl_training.train(rl_training.load_config("ppo/cartpole", settings), track=False, progress=False)
print(json.dumps({"policy_sha256": summary.policy_sha256}))
"""


def main() -> None:
    """Runs both sweeps and the trials alone, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16, help="trials of the sweep (default: 16)")
    parser.add_argument("--timesteps", type=int, default=1_500_000, help="steps of each trial")
    arguments = parser.parse_args()
    overrides = {
        "total_timesteps": arguments.timesteps,
        "evaluation": {"every": arguments.timesteps // 4, "episodes": 10, "final_episodes": 20, "video": False},
    }
    rates = [float(f"{rate:.3g}") for rate in np.geomspace(1e-4, 1e-3, arguments.trials)]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        single = time_sweep(Path(folder) / "single", overrides, rates, parallel=1)
        many = time_sweep(Path(folder) / "many", overrides, rates, parallel=arguments.trials)
        alone = [
            run_json(["-c", ALONE, json.dumps({**overrides, "learning_rate": rate})], Path(folder) / "alone")
            for rate in rates
        ]
    policies = [run["policy_sha256"] for run in alone]
    record(
        "sweep-parallel-trials",
        {
            "trials": arguments.trials,
            "at_once": min(count_cpus(), arguments.trials),
            "seconds_one_after_the_other": single["seconds"],
            "seconds_at_once": many["seconds"],
            "ratio": single["seconds"] / many["seconds"],
            "seconds_a_trial": single["seconds"] / arguments.trials,
            "equal_to_the_run_alone": sum(
                a == b == c for a, b, c in zip(policies, single["policies"], many["policies"], strict=True)
            ),
            "load_average_before": load,
        },
    )


def time_sweep(home: Path, overrides: dict[str, Any], rates: list[float], *, parallel: int) -> dict[str, Any]:
    """Returns the seconds that a sweep takes, and the policy of each trial."""
    settings = {
        "config": "ppo/cartpole",
        "overrides": overrides,
        "space": {"learning_rate": {"choice": rates}},
        "method": "grid",
        "trials": len(rates),
        "parallel": parallel,
        "confirmation": {"points": 0},
    }
    file = home.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(settings))
    began = time.perf_counter()
    result = StruckSweep(file, home, options=["--no-track"]).run([])
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "policies": [trial["runs"][0]["policy_sha256"] for trial in result["trials"]]}


if __name__ == "__main__":
    main()
