"""Resume: is a run that stops in mid-episode and goes on in a new process the run that never stopped, bit for bit?

One process trains all cases in one go; a second one trains each until a step at which every environment is in the
middle of its second or a later episode; a third one goes on from the checkpoints. Compared are the observation right
after the resume, all metrics but `time/*`, the evaluations with their episodes, and the final policy, optimiser, target
networks, random states, environments and replay buffer.

    python -m benchmarks.resume.exactness
    python -m benchmarks.resume.exactness --only CartPole-v1-dqn     # some cases; writes no JSON
    python -m benchmarks.resume.exactness --table docs/resume.md     # writes the page's table from the JSON
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import RESULTS, ROOT, environment, provenance, write_json
from benchmarks.resume.cases import CASES, EARLIEST_STOP, SETTINGS, Case, table
from benchmarks.resume.run_comparison import differences
from rl_training.errors import RLTrainingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import find_checkpoint, load_trainer_state
from rl_training.runtime.off_policy_trainer import OffPolicyTrainer
from rl_training.runtime.ppo_trainer import PPOTrainer
from rl_training.tracking.metric_log import MetricLog

NAME = "resume-exactness"
CAPTION = """\
Stopped in the middle of a second or later episode, and resumed in a new process (`make bench-resume`): {exact} of the
{cases} cases in {environments} environments were exact. `sync` and `async` are the kinds of vector environment;
`normalised` has both normalisers on, `frames` stacks three observations, `n-step` has targets of three steps, and `all`
is all of these with `async`. What is not named is off."""
WHOLE, STOPPED = "whole", "stopped"
OBSERVATION, PLACE, ERROR = "observation.npy", "place.json", "error.txt"
_BLOCK = re.compile(r"(<!-- resume-exactness -->\n).*?(<!-- /resume-exactness -->)", re.DOTALL)


def main() -> int:
    arguments = _parse()
    cases = [case for case in CASES if not arguments.only or any(word in case.name for word in arguments.only)]
    if arguments.table is not None:
        page, result = arguments.table, json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
        page.write_text(updated(page.read_text(encoding="utf-8"), result["cases"]), encoding="utf-8")
        return 0
    if arguments.stage is not None:
        run_stage(arguments.stage, cases, arguments.home)
        return 0
    with tempfile.TemporaryDirectory(prefix="resume-") as home:
        results = measure(cases, Path(home))
    summary = summarize(results)
    print(table(results))
    for result in results:
        for line in result["differences"]:
            print(f"{result['env_id']} {result['algo']} {result['variant']}: {line}")
    print(json.dumps(summary))
    if not arguments.only:
        simulators = {name: version(name) for name in ("box2d", "mujoco")}
        result = {"benchmark": NAME, "summary": summary, "settings": SETTINGS, "cases": results}
        print(f"written: {write_json(NAME, {**result, 'simulators': simulators, **provenance()})}")
    return 0 if summary["exact"] == len(results) else 1


def updated(page: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Returns a Markdown page with the table between its markers written anew, under a line on what it shows."""
    counts = summarize(results)
    caption = CAPTION.format(**counts)
    return _BLOCK.sub(lambda match: f"{match[1]}\n{caption}\n\n{table(results)}\n\n{match[2]}", page)


def measure(cases: Sequence[Case], home: Path) -> list[dict[str, Any]]:
    """Runs each stage of all cases in a process of its own, one after the other, and compares what came out.

    Args:
        cases: What to train.
        home: A directory for the runs.

    Returns:
        For each case what it was, where it was stopped, and a line for each thing that differs.
    """
    for stage in STAGES:
        command = [
            sys.executable,
            "-m",
            "benchmarks.resume.exactness",
            "--stage",
            stage,
            "--home",
            str(home),
            "--only",
            *(c.name for c in cases),
        ]
        subprocess.run(command, env=environment(home), cwd=ROOT, check=True)
    return [_result(case, home / case.name) for case in cases]


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns how many cases and environments there are, and how many of each are exact in all ways."""
    environments = {result["env_id"] for result in results}
    inexact = {result["env_id"] for result in results if not result["exact"]}
    return {
        "cases": len(results),
        "exact": sum(result["exact"] for result in results),
        "environments": len(environments),
        "environments_exact": len(environments - inexact),
    }


def _result(case: Case, directory: Path) -> dict[str, Any]:
    error = directory / ERROR
    place = json.loads((directory / PLACE).read_text()) if (directory / PLACE).exists() else {}
    found = [error.read_text()] if error.exists() else differences(directory / WHOLE, directory / STOPPED)
    return {**asdict(case), **place, "exact": not found, "differences": found}


# The stages, each in a process of its own.


def run_stage(stage: str, cases: Iterable[Case], home: Path) -> None:
    """Takes all cases through one stage; what is refused or fails is written down, and the case ends with it."""
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
    """Asks for a stop at the first step from `EARLIEST_STOP` on at which all environments are in a later episode."""

    trainer: PPOTrainer | OffPolicyTrainer | None = None

    @property
    def requested(self) -> bool:
        """Whether that step has come."""
        trainer = self.trainer
        if trainer is not None and self.cause is None and trainer.num_timesteps >= EARLIEST_STOP:
            places = trainer.envs.state_dict()["snapshots"]
            if all(place["random_state_before_reset"] is not None and place["episode_length"] >= 3 for place in places):
                self.request("signal")
        return self.cause is not None


def train_whole(case: Case, directory: Path) -> None:
    """Trains in one go."""
    config = config_from_mapping({**case.settings(), "run_dir": str(directory / WHOLE)})
    DefaultExperimentManager().setup(config, [MetricLog(directory / WHOLE)]).train()


def train_and_stop(case: Case, directory: Path) -> None:
    """Trains until the stop, and notes where that was."""
    stop = StopInMidEpisode()
    config = config_from_mapping({**case.settings(), "run_dir": str(directory / STOPPED)})
    trainer = DefaultExperimentManager().setup(config, [MetricLog(directory / STOPPED)], stop=stop)
    assert isinstance(trainer, PPOTrainer | OffPolicyTrainer)
    stop.trainer = trainer
    result = trainer.train()
    if result.stop_reason != "signal":
        raise RLTrainingError("at no step were all environments in the middle of a later episode")
    np.save(directory / OBSERVATION, trainer.envs.observation, allow_pickle=False)
    state = load_trainer_state(find_checkpoint(directory / STOPPED))
    place = {
        "stopped_at": result.num_timesteps,
        "episodes_before": state["progress"]["episodes"],
        "steps_into_episodes": [snapshot["episode_length"] for snapshot in state["envs"]["snapshots"]],
    }
    (directory / PLACE).write_text(json.dumps(place))


def resume(case: Case, directory: Path) -> None:
    """Goes on from the checkpoint to the end."""
    run_dir = directory / STOPPED
    trainer = DefaultExperimentManager().resume(run_dir, [MetricLog(run_dir)])
    assert isinstance(trainer, PPOTrainer | OffPolicyTrainer)
    if trainer.envs.observation.tobytes() != np.load(directory / OBSERVATION, allow_pickle=False).tobytes():
        (directory / ERROR).write_text("resume: the observation right after it is not the one before the stop")
    trainer.train()


STAGES = {"whole": train_whole, "stop": train_and_stop, "resume": resume}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stop runs in the middle of an episode, resume them, and compare.")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only cases whose name has one of these words")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the table into this page from the JSON")
    parser.add_argument("--stage", choices=STAGES, help="run one stage in this process")
    parser.add_argument("--home", type=Path, help="where the stages keep the runs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
