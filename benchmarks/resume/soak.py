"""Checks that a training run that is struck by signals and closed pipes ends exactly as an undisturbed run.

Each case trains twice with the same settings: once undisturbed, and once struck at random times (at the start-up of a
process, before the first checkpoint, during training, and at the end). After each strike, `rl-training resume RUN_DIR`
continues the run in a new process. 40 signals end a process: 20 SIGKILL, 10 SIGTERM and 10 SIGHUP. 10 times, the reader
of the output ends, and the process continues to train. Then all recorded data and the final states of both runs are
compared, as described in `run_comparison.py`. The exit code is 1 if anything differs or if there is a fault.

    python -m benchmarks.resume.soak
    python -m benchmarks.resume.soak --only ppo-cartpole --kills 2 --terms 1 --hangups 1 --closed-pipes 2  # no JSON
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import count_cpus, make_environment, record, write_json
from benchmarks.resume.run_comparison import find_differences, read_points
from benchmarks.resume.strikes import KINDS, Process, draw_strikes
from benchmarks.resume.struck_run import StruckRun
from rl_training.errors import RLTrainingError
from rl_training.runtime.checkpoint import find_checkpoint, newest_good


@dataclass(frozen=True)
class Case:
    """A shipped config, with overrides so that a run of less than a minute contains all phases."""

    name: str
    config: str
    total_timesteps: int
    warm_up: int
    """Steps before the first update."""
    overrides: tuple[str, ...]

    def train(self, run_dir: Path) -> list[str]:
        """Returns the arguments of `python` that train this case."""
        sets = [f"total_timesteps={self.total_timesteps}", f"run_dir={run_dir}", *self.overrides]
        flags = [word for override in sets for word in ("--set", override)]
        return ["-m", "rl_training", "train", "--config", self.config, *flags, "--no-track"]


NORMALISED = ("normalization.observation=true", "normalization.reward=true")
OFF_POLICY = ("network.hidden=[64, 64]", "batch_size=64", "learning_starts=1_000", "buffer_size=5_000")
FEW_EPISODES = ("evaluation.episodes=5", "evaluation.final_episodes=20")


def _set_cadences(logging: int, evaluation: int, checkpoint: int) -> tuple[str, ...]:
    """Returns overrides of the cadences, with at least one log and one checkpoint between two strikes."""
    return f"logging.every={logging}", f"evaluation.every={evaluation}", f"checkpoint.every={checkpoint}"


def _make_cases() -> Iterator[Case]:
    yield Case("ppo-cartpole", "ppo/cartpole", 150_000, 0, _set_cadences(256, 6_000, 2_000))
    own = ("num_envs=2", "vectorization=async", "rollout_steps=256", *NORMALISED, *FEW_EPISODES)
    yield Case("ppo-lunarlander", "ppo/lunar_lander", 80_000, 0, (*own, *_set_cadences(512, 4_000, 1_000)))

    yield Case("dqn-cartpole", "dqn/cartpole", 40_000, 1_000, (*OFF_POLICY, *_set_cadences(128, 2_000, 500)))
    own = (*OFF_POLICY, *NORMALISED, *FEW_EPISODES, "num_envs=2", "n_step=3")
    yield Case("dqn-lunarlander", "dqn/lunar_lander", 20_000, 1_000, (*own, *_set_cadences(64, 2_000, 250)))

    yield Case("sac-pendulum", "sac/pendulum", 12_000, 1_000, (*OFF_POLICY, *_set_cadences(32, 1_000, 150)))
    own = (*OFF_POLICY, *FEW_EPISODES, "normalization.observation=true")
    name, config = "sac-lunarlandercontinuous", "sac/lunar_lander_continuous"
    yield Case(name, config, 12_000, 1_000, (*own, *_set_cadences(32, 1_000, 150)))

    own = (*OFF_POLICY, "normalization.observation=true")
    for algo in ("td3", "tqc"):
        yield Case(f"{algo}-pendulum", f"{algo}/pendulum", 12_000, 1_000, (*own, *_set_cadences(32, 1_000, 150)))


CASES = {case.name: case for case in _make_cases()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Strike training runs, resume them, and compare.")
    for option, number, what in (
        ("--kills", 20, "SIGKILLs per run"),
        ("--terms", 10, "SIGTERMs per run"),
        ("--hangups", 10, "SIGHUPs per run"),
        ("--closed-pipes", 10, "closed pipes per run"),
        ("--seed", 0, "seed of the strikes"),
        ("--parallel", count_cpus(), "parallel cases"),
    ):
        parser.add_argument(option, type=int, default=number, help=f"{what} (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=f"some of {', '.join(CASES)}")
    arguments = parser.parse_args()
    counts = dict(
        zip(KINDS, (arguments.kills, arguments.terms, arguments.hangups, arguments.closed_pipes), strict=True)
    )
    names, home = arguments.only or list(CASES), Path(tempfile.mkdtemp(prefix="soak-"))
    with ThreadPoolExecutor(arguments.parallel) as pool:
        measured = pool.map(lambda name: soak(CASES[name], counts, arguments.seed, home / name), names)
        results = dict(zip(names, measured, strict=True))
    summary = summarize(results)
    print(json.dumps(summary))
    if not arguments.only:
        record("soak", {"seed": arguments.seed, "summary": summary, "cases": results})
    if summary["equal"] < summary["cases"] or summary["faults"]:
        print(f"the runs are in {home}", file=sys.stderr)
        return 1
    shutil.rmtree(home)
    return 0


def soak(case: Case, counts: Mapping[str, int], seed: int, home: Path) -> dict[str, Any]:
    """Trains a case undisturbed and with strikes in the new directory `home`, and compares the runs.

    Returns:
        The counts, the strikes, the differences and the faults.
    """
    began, whole, struck = time.monotonic(), home / "whole", home / "struck"
    home.mkdir(parents=True)
    undisturbed = Process([sys.executable, *case.train(whole)], whole, home, make_environment(home))
    if undisturbed.wait() != 0:
        raise RuntimeError(f"{case.name} fails even undisturbed: {undisturbed.output()[-2000:]}")
    undisturbed_seconds = time.monotonic() - began
    run = StruckRun(sys.executable, case.train(struck), struck, home, make_environment(home), case.warm_up)
    happened = run.run(draw_strikes(case.total_timesteps, counts, seed))
    try:
        found = find_differences(whole, struck)
    except (RLTrainingError, OSError, ValueError) as error:
        found = [f"the runs can't be compared: {type(error).__name__}: {error}"]
    result = {
        "config": case.config,
        "total_timesteps": case.total_timesteps,
        "overrides": case.overrides,
        "equal": not found and not happened["faults"],
        "policy_sha256": find_checkpoint(whole).policy_sha256,
        "policy_sha256_struck": newest.policy_sha256 if (newest := newest_good(struck / "checkpoints")[0]) else None,
        "metric_points": len(read_points(whole)),
        "differences": found,
        "seconds_undisturbed": round(undisturbed_seconds, 1),
        "seconds_struck": round(time.monotonic() - began - undisturbed_seconds, 1),
        **happened,
    }
    print(describe(case.name, result), flush=True)
    write_json("result", result, home)
    return result


def describe(name: str, result: Mapping[str, Any]) -> str:
    """Describes the result of a case for people."""
    struck = ", ".join(f"{result[kind]} {kind}" for kind in KINDS)
    lines = [
        f"{name}: {'equal' if result['equal'] else 'NOT EQUAL'} after {struck}; "
        f"{result['resumes']} resumes, {result['refused_resumes']} of them refused; "
        f"{result['seconds_undisturbed']} s undisturbed, {result['seconds_struck']} s struck",
        f"  struck in: {', '.join(f'{phase} {count}' for phase, count in result['phases'].items())}; "
        f"exit codes: {', '.join(f'{code} {count} times' for code, count in result['exit_codes'].items())}",
    ]
    return "\n".join([*lines, *(f"  {line}" for line in [*result["differences"], *result["faults"]])])


def summarize(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the sums over all cases."""
    cases = results.values()
    sums = (*KINDS, "resumes", "refused_resumes", "saves_cut_off", "processes_left_over")
    longest = ("seconds_from_signal_to_exit_max", "seconds_from_signal_to_checkpoint_max")
    return {
        "cases": len(results),
        "equal": sum(case["equal"] for case in cases),
        **{name: sum(case[name] for case in cases) for name in sums},
        **{name: max((case[name] for case in cases if case[name] is not None), default=None) for name in longest},
        "phases": dict(sum((Counter(case["phases"]) for case in cases), Counter()).most_common()),
        "exit_codes": dict(sum((Counter(case["exit_codes"]) for case in cases), Counter())),
        "faults": sum(len(case["faults"]) for case in cases),
    }


if __name__ == "__main__":
    sys.exit(main())
