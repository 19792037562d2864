"""Checks that a run that stops within an episode and resumes in a new process equals the run that never stopped.

The first process trains all cases without a stop. The second process trains each case until every environment is in the
middle of its second or a later episode. The third process resumes from the checkpoints. The benchmark compares the
observation right after the resume, all metrics except `time/*`, the evaluations with their episodes, and the final
policy, optimizer, target networks, random states, environments and replay buffer, all bit for bit.

    python -m benchmarks.resume.exactness
    python -m benchmarks.resume.exactness --only CartPole-v1-dqn     # only some cases; writes no JSON
    python -m benchmarks.resume.exactness --table docs/resume.md     # updates the page's table from the JSON
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, ROOT, make_environment, record, replace_block, update_file
from benchmarks.resume.cases import CASES, EARLIEST_STOP, SETTINGS, Case, format_table
from benchmarks.resume.run_comparison import find_differences
from rl_training.errors import RLTrainingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import find_checkpoint, load_trainer_state
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer
from rl_training.tracking.metric_log import MetricLog

NAME = "resume-exactness"
CAPTION = """\
Runs that were stopped in the middle of their second or a later episode and resumed in a new process
(`make bench-resume`): {exact} of the {cases} cases in {environments} environments were exact. `sync` and `async` are
the kinds of vector environment. `normalised` normalizes observations and rewards, `frames` stacks three observations,
`n-step` uses targets of three steps, and `all` combines these with `async`. `quantiles` estimates eight of each return,
`prioritized` draws transitions by their errors, `hindsight` replaces their goals, `masked` applies action masks
(`masked-normalised` with `async`), and `memory` has an LSTM. `changed` clips rewards in training alone, gives reset
options, logs a number of infos, and has a callback that changes an attribute and the options, within episodes too. A
`curriculum` changes the attribute twice, before the stop and after it, with `async`. `native` steps the environments as
arrays."""
WHOLE, STOPPED = "whole", "stopped"
OBSERVATION, PLACE, ERROR = "observation.npy", "place.json", "error.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description="Stop runs within an episode, resume them, and compare.")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only cases whose names contain one of these words")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="update the table of this page from the JSON")
    parser.add_argument("--stage", choices=STAGES, help="run one stage in this process")
    parser.add_argument("--home", type=Path, help="folder of the runs")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.only or any(word in case.name for word in arguments.only)]
    if arguments.table is not None:
        result = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
        update_file(arguments.table, lambda page: update_page(page, result["cases"]))
        return 0
    if arguments.stage is not None:
        run_stage(arguments.stage, cases, arguments.home)
        return 0
    with tempfile.TemporaryDirectory(prefix="resume-") as home:
        results = measure(cases, Path(home))
    summary = summarize(results)
    print(format_table(results))
    for result in results:
        for line in result["differences"]:
            print(f"{result['env_id']} {result['algo']} {result['variant']}: {line}")
    print(json.dumps(summary))
    if not arguments.only:
        simulators = {name: version(name) for name in ("box2d", "mujoco")}
        record(NAME, {"summary": summary, "settings": SETTINGS, "cases": results, "simulators": simulators})
    return 0 if summary["exact"] == len(results) else 1


def update_page(page: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page with its table and the caption of the table updated."""
    caption = CAPTION.format(**summarize(results))
    return replace_block(page, NAME, f"{caption}\n\n{format_table(results)}")


def measure(cases: Sequence[Case], home: Path) -> list[dict[str, Any]]:
    """Runs each stage of all cases in its own process, one after another, and compares the runs in `home`.

    Returns:
        For each case its settings, the step at which it was stopped, and a line for each difference.
    """
    for stage in STAGES:
        command = [sys.executable, "-m", "benchmarks.resume.exactness", "--stage", stage, "--home", str(home), "--only"]
        names = [case.name for case in cases]
        subprocess.run([*command, *names], env=make_environment(home), cwd=ROOT, check=True)
    results = []
    for case in cases:
        directory = home / case.name
        error, place = directory / ERROR, directory / PLACE
        found = [error.read_text()] if error.exists() else find_differences(directory / WHOLE, directory / STOPPED)
        stopped = json.loads(place.read_text()) if place.exists() else {}
        results.append({**asdict(case), **stopped, "exact": not found, "differences": found})
    return results


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the numbers of cases and environments, and how many of each are exact."""
    environments = {result["env_id"] for result in results}
    inexact = {result["env_id"] for result in results if not result["exact"]}
    return {
        "cases": len(results),
        "exact": sum(result["exact"] for result in results),
        "environments": len(environments),
        "environments_exact": len(environments - inexact),
    }


def run_stage(stage: str, cases: Iterable[Case], home: Path) -> None:
    """Runs one stage of all cases; an error is recorded, and ends its case."""
    logging.disable(logging.INFO)
    for case in cases:
        directory = home / case.name
        directory.mkdir(exist_ok=True)
        if not (directory / ERROR).exists():
            try:
                STAGES[stage](case, directory)
            except RLTrainingError as error:
                (directory / ERROR).write_text(f"{stage}: {type(error).__name__}: {error}")


class StopInMidEpisode(StopFlag):
    """Requests a stop at the first step from `EARLIEST_STOP` on at which all environments are in a later episode."""

    trainer: PPOTrainer | OffPolicyTrainer | None = None

    @property
    def requested(self) -> bool:
        """Whether the trainer has reached that step."""
        trainer = self.trainer
        if trainer is not None and self.cause is None and trainer.num_timesteps >= EARLIEST_STOP:
            lengths = find_lengths(trainer.envs.state_dict())
            if all(3 <= length < trainer.num_timesteps // len(lengths) for length in lengths):
                self.request("signal")
        return self.cause is not None


def find_lengths(envs: Mapping[str, Any]) -> list[int]:
    """Returns the steps of each environment's running episode, given the state of all environments."""
    if "running" in envs:  # the environments are native
        return [int(length) for length in envs["running"]["lengths"]]
    return [snapshot["episode_length"] for snapshot in envs["snapshots"]]


def train_whole(case: Case, directory: Path) -> None:
    """Trains a case without a stop."""
    config = config_from_mapping({**case.settings(), "run_dir": str(directory / WHOLE)})
    DefaultExperimentManager().setup(config, [MetricLog(directory / WHOLE), *case.callbacks()]).train()


def train_and_stop(case: Case, directory: Path) -> None:
    """Trains a case until the stop, and records where that was."""
    stop = StopInMidEpisode()
    config = config_from_mapping({**case.settings(), "run_dir": str(directory / STOPPED)})
    callbacks = [MetricLog(directory / STOPPED), *case.callbacks()]
    trainer = DefaultExperimentManager().setup(config, callbacks, stop=stop)
    assert isinstance(trainer, PPOTrainer | OffPolicyTrainer)
    stop.trainer = trainer
    result = trainer.train()
    if result.stop_reason != "signal":
        raise RLTrainingError("there was no step at which all environments were in the middle of a later episode")
    np.save(directory / OBSERVATION, trainer.envs.observation, allow_pickle=False)
    state = load_trainer_state(find_checkpoint(directory / STOPPED))
    place = {
        "stopped_at": result.num_timesteps,
        "episodes_before": state["progress"]["episodes"],
        "steps_into_episodes": find_lengths(state["envs"]),
    }
    (directory / PLACE).write_text(json.dumps(place))


def resume(case: Case, directory: Path) -> None:
    """Resumes a case from its checkpoint, and trains it to the end."""
    run_dir = directory / STOPPED
    trainer = DefaultExperimentManager().resume(run_dir, [MetricLog(run_dir), *case.callbacks()])
    assert isinstance(trainer, PPOTrainer | OffPolicyTrainer)
    if trainer.envs.observation.tobytes() != np.load(directory / OBSERVATION, allow_pickle=False).tobytes():
        (directory / ERROR).write_text("resume: the observation after the resume is not the one before the stop")
    trainer.train()


STAGES = {"whole": train_whole, "stop": train_and_stop, "resume": resume}


if __name__ == "__main__":
    sys.exit(main())
