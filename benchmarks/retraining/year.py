"""Simulates a year of weekly retrainings of a task that drifts, with faults at random, and looks at each decision.

Each week runs `rl-training flow retrain` as a process of its own, with the week's task. In some weeks it is killed or
stopped at a random moment, its newest checkpoint is damaged, or MLflow's database is locked; then the command that an
operator would use completes the week. After each decision, candidate and champion play 2,000 episodes of the week's
task, so their true values are known to the decision's judge. The result says

- how many promotions lowered the value, and how many of the candidates that were not better may be promoted at the
  gate's rate, at the 99 % level;
- whether a promotion lowered the value by more than the width of the decision's own interval;
- how the disk and both databases grew, with `rl-training clean` every fourth week;
- which runs and flow runs were left unfinished;
- whether the registered version's page gives each reason of the decision.

    python -m benchmarks.retraining.year                 # an hour; writes benchmarks/results/year-of-retraining.json
    python -m benchmarks.retraining.year --weeks 3       # the first three weeks; writes no JSON

Finished weeks are kept in benchmarks/work until the year is over, so the command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import binom

from benchmarks.harness import ROOT, make_environment, record
from benchmarks.retraining.kept_weeks import KeptWeeks
from benchmarks.retraining.weekly_run import FAULTS, Week, run_command, run_week
from rl_training.experiment.loading import load_config
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.workflows import load_policy
from rl_training.system.paths import HOME_VARIABLE, embedded_tracking_uri
from rl_training.tracking.checkpoint_sources import ModelSource, download_version_policy, find_version
from rl_training.tracking.mlflow_store import connect

WEEKS, SEED = 52, 20261130
MODEL = "hold-in-wind"
DRIFT = 0.12
"""Standard deviation of the change of the wind in a week."""
EPISODES = 2_000
CLEANING = 4
"""Number of weeks between two cleanings."""
SETTINGS: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "benchmarks.retraining.drifting_task:HoldInWind-v0",
    "total_timesteps": 8_192,
    "num_envs": 8,
    "rollout_steps": 64,
    "network": {"hidden": [16, 16]},
    "evaluation": {"every": 2_048, "final_episodes": 50},
    "checkpoint": {"every": 1_024},
    "promotion": {"model": MODEL, "episodes": 100},
}


@dataclass
class Decision:
    """A decision, with the true values of both policies on the week's task."""

    week: int
    fault: str
    verdict: str
    version: str
    champion: str | None
    candidate_value: float
    champion_value: float | None
    difference: float
    """The candidate's value less the champion's, on the same episodes; 0 without a champion."""
    width: float
    """Width of the interval of the difference in the decision; 0 without a champion."""
    promoted: bool
    is_explained: bool
    """Whether the page of the version gives every reason."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate a year of weekly retrainings with faults.")
    parser.add_argument("--weeks", type=int, default=WEEKS, help="number of weeks (default: 52)")
    weeks = parser.parse_args().weeks
    folder = ROOT / "benchmarks" / "work" / "year"
    result = simulate(folder, weeks)
    print(json.dumps({name: value for name, value in result.items() if name not in ("decisions", "sizes")}, indent=2))
    if weeks == WEEKS:
        record("year-of-retraining", result)
        KeptWeeks(folder).remove()
    return 0 if result["holds"] else 1


def simulate(folder: Path, weeks: int) -> dict[str, Any]:
    """Runs the weeks that are not finished yet in a home of their own, and returns the result of all."""
    kept, config = KeptWeeks(folder), folder / "weekly.yaml"
    finished = kept.restore()[:weeks]
    config.write_text(yaml.safe_dump(SETTINGS, sort_keys=False), encoding="utf-8")
    environment = make_environment(kept.home) | {"PYTHONPATH": str(ROOT)}
    os.environ[HOME_VARIABLE] = str(kept.home)
    for week in _plan(weeks, config, kept.home, environment)[len(finished) :]:
        began = time.monotonic()
        promotion, seconds = run_week(week, max((each["undisturbed"] for each in finished), default=0.0))
        decision = _judge(week, promotion)
        if week.number % CLEANING == CLEANING - 1:
            run_command(["clean", "--older-than", "0h", "--yes"], week)
        finished.append(
            {
                "decision": asdict(decision),
                "sizes": _measure_sizes(kept.home),
                "undisturbed": seconds,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
        kept.add(len(finished), finished[-1])
        print(json.dumps(finished[-1]), flush=True)
    decisions = [Decision(**each["decision"]) for each in finished]
    summary = _summarize(decisions, [each["sizes"] for each in finished], _find_unfinished(kept.home))
    return summary | {"minutes": round(sum(each["seconds"] for each in finished) / 60, 1)}


def _plan(weeks: int, config: Path, home: Path, environment: dict[str, str]) -> list[Week]:
    """Draws the wind and the fault of each week."""
    rng, wind, planned = np.random.default_rng(SEED), 0.0, []
    for number in range(weeks):
        wind = float(np.clip(wind + DRIFT * rng.standard_normal(), -0.6, 0.6))
        # The first runs show how long one takes, so that a fault comes at any moment of it.
        fault = "none" if number < 2 else str(rng.choice(list(FAULTS), p=list(FAULTS.values())))
        planned.append(Week(number, wind, fault, float(rng.random()), config, home, environment))
    return planned


def _judge(week: Week, promotion: Mapping[str, Any]) -> Decision:
    """Plays the episodes that show who was better, and reads the page of the version."""
    uri = embedded_tracking_uri()
    client = connect(uri)
    settings = load_config(week.config, {"env_kwargs": {"wind": week.wind}})
    seeds = [10_000_000 + EPISODES * week.number + i for i in range(EPISODES)]
    returns = {}
    for version in {promotion["version"], promotion["previous_version"]} - {None}:
        found = find_version(client, ModelSource(MODEL, None, version))
        policy = load_policy(download_version_policy(client, uri, found))
        returns[version] = np.array(evaluate_policy(policy, settings, seeds, num_envs=100).returns)
    page = client.get_model_version(MODEL, promotion["version"]).description or ""
    numbers, before = promotion["numbers"], promotion["previous_version"]
    has_opponent = before is not None and before != promotion["version"]
    candidate = float(returns[promotion["version"]].mean())
    return Decision(
        week=week.number,
        fault=week.fault,
        verdict=promotion["verdict"],
        version=promotion["version"],
        champion=before,
        candidate_value=candidate,
        champion_value=float(returns[before].mean()) if has_opponent else None,
        difference=float((returns[promotion["version"]] - returns[before]).mean()) if has_opponent else 0.0,
        width=numbers["difference_upper"] - numbers["difference_lower"] if "difference_upper" in numbers else 0.0,
        promoted=promotion["verdict"] == "PROMOTE",
        is_explained=all(reason in page for reason in promotion["reasons"]),
    )


def _measure_sizes(home: Path) -> dict[str, int]:
    files = [path for path in home.rglob("*") if path.is_file()]
    return {
        "bytes": sum(path.stat().st_size for path in files),
        "run_directories": len(list((home / "runs").glob("*/metadata.json"))),
        "versions": len(connect(embedded_tracking_uri()).search_model_versions(f"name = '{MODEL}'")),
        "mlflow_bytes": (home / "mlflow.db").stat().st_size,
        "prefect_bytes": sum(path.stat().st_size for path in files if path.name.startswith("prefect.db")),
    }


def _find_unfinished(home: Path) -> list[str]:
    """Returns the runs in MLflow and the flow runs in Prefect that have no final state."""
    client = connect(embedded_tracking_uri())
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    left = [f"run {run.info.run_id}" for run in client.search_runs(experiments, "attributes.status = 'RUNNING'")]
    for database in home.rglob("prefect.db"):
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT id, state_type FROM flow_run").fetchall()
        left += [f"flow run {number}: {state}" for number, state in found if state in ("RUNNING", "PENDING")]
    return left


def _summarize(decisions: Sequence[Decision], sizes: Sequence[dict[str, int]], left: list[str]) -> dict[str, Any]:
    compared = [decision for decision in decisions if decision.champion_value is not None]
    lowered = [decision for decision in compared if decision.promoted and decision.difference < 0.0]
    not_better = sum(decision.difference <= 0.0 for decision in compared)
    allowed = int(binom.ppf(0.99, not_better, 0.05)) if not_better else 0
    middle = len(sizes) // 2
    growth = {
        name: (sizes[middle][name] - sizes[0][name], sizes[-1][name] - sizes[middle][name])
        for name in ("bytes", "mlflow_bytes", "prefect_bytes")
    }
    checks = {
        "few_promotions_lowered_the_value": len(lowered) <= allowed,
        "none_lowered_it_by_more_than_its_interval": all(-each.difference <= each.width for each in lowered),
        "no_growth_is_faster_in_the_second_half": all(late <= 1.25 * early for early, late in growth.values()),
        # `clean` keeps the directories of the runs that registered versions come from.
        "run_directories_are_bounded": sizes[-1]["run_directories"] <= sizes[-1]["versions"] + CLEANING,
        "nothing_is_unfinished": not left,
        "every_decision_is_explained": all(decision.is_explained for decision in decisions),
    }
    return {
        "weeks": len(decisions),
        "seed": SEED,
        "faults": {fault: sum(decision.fault == fault for decision in decisions) for fault in FAULTS},
        "verdicts": {kind: sum(each.verdict == kind for each in decisions) for kind in ("PROMOTE", "HOLD", "REJECT")},
        "lowered": len(lowered),
        "not_better": not_better,
        "allowed": allowed,
        "growth_in_first_and_second_half": growth,
        "unfinished": left,
        "checks": checks,
        "holds": all(checks.values()),
        "decisions": [asdict(decision) for decision in decisions],
        "sizes": list(sizes),
    }


if __name__ == "__main__":
    raise SystemExit(main())
