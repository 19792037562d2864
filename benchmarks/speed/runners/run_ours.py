"""Runs one measured training of rl_training through the public interface; see `meter.py`.

`ours` calls `train_ppo(config)` or its equivalents, without evaluations and checkpoints during training, like the
peers. Only a checkpoint before the first step, one after the last step, and one final evaluation episode remain.
`ours-split` also splits the environments equally between this process and one process for each further CPU. `tracked`
is `rl-training train` with all features: metrics, MLflow, checkpoints, evaluations and the progress display. It also
reports `orchestration`: the time of the training thread in callbacks and in the saver, as a share of the time in
`Trainer.train()` without evaluations.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import ROOT, Stopwatch
from benchmarks.speed.meter import Meter, parse_arguments
from benchmarks.speed.tasks import SPLIT, TASKS, TRACKED, SolvedTask, SpeedTask, Task
from rl_training import Callback, TrainConfig, TrainerState, get_algorithm, load_config
from rl_training.experiment.loading import config_from_mapping

PACKAGES = ("rl-training", "torch", "numpy", "gymnasium")
NEVER = 10**12
ALONE = {"evaluation": {"every": NEVER, "episodes": 1, "video": False}, "checkpoint": {"every": NEVER}}
"""Settings without evaluations and checkpoints during training."""


class Clock(Callback):
    """Reports the run to the meter, and ends it when the task is solved."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_train_start(self, state: TrainerState) -> None:
        """Records the start before the first step."""
        self._meter.begin()

    def on_update_end(self, state: TrainerState) -> None:
        """Records the end of an update."""
        self._meter.close_window(state.num_timesteps)

    def on_eval_end(self, state: TrainerState) -> None:
        """Ends the run if this evaluation has solved the task."""
        assert state.evaluation is not None  # set for this event
        self._meter.record_evaluation(state.num_timesteps, state.evaluation.return_mean)
        if self._meter.solved is not None:
            state.request_stop()


def make_speed_config(task: Task, threads: int, seed: int, **more: Any) -> TrainConfig:
    """Returns a task's settings without evaluations and checkpoints during training; `more` replaces any of them."""
    steps = {"algo": task.algo, "env_id": task.env_id, "total_timesteps": task.steps}
    return config_from_mapping({**steps, **task.settings, "threads": threads, "seed": seed, **ALONE, **more})


def train_alone(meter: Meter) -> None:
    """Trains a task of the speed table without tracking."""
    arguments, task = meter.arguments, meter.task
    more = {"vectorization": "split"} if arguments.contestant == SPLIT else {}
    result = get_algorithm(task.algo).train(
        make_speed_config(task, arguments.threads, arguments.seed, **more), [Clock(meter)]
    )
    meter.finish(result.num_timesteps, PACKAGES)


def train_tracked(meter: Meter) -> None:
    """Trains a task of the speed table with all features, and measures their share of the training thread's time."""
    from rl_training.api.train_and_resume import train
    from rl_training.runtime.callbacks import CallbackList
    from rl_training.runtime.checkpoint_saver import Saver
    from rl_training.runtime.evaluation import Evaluator
    from rl_training.runtime.trainer import Trainer

    arguments, task = meter.arguments, meter.task
    assert isinstance(task, SpeedTask)
    training, evaluation, around = Stopwatch(), Stopwatch(), Stopwatch()
    training.watch(Trainer, "train")
    evaluation.watch(Evaluator, "run")
    around.watch(CallbackList, "call")
    around.watch(Saver, "begin", "end", "save", "write_ahead", "close")
    shipped = {"every": task.every}
    more = {"checkpoint": shipped, "evaluation": shipped | {"final_episodes": 1, "video": False}}
    config = make_speed_config(task, arguments.threads, arguments.seed, total_timesteps=task.tracked_steps, **more)
    summary = train(config, [Clock(meter)], progress=True)
    seconds = {"train_seconds": training.seconds, "evaluation_seconds": evaluation.seconds}
    share = around.seconds / (training.seconds - evaluation.seconds)
    meter.finish(summary.num_timesteps, PACKAGES, **seconds, around_seconds=around.seconds, orchestration=share)


def train_until_solved(meter: Meter) -> None:
    """Trains a shipped config until it is solved, with evaluations as often as for the peers."""
    arguments, task = meter.arguments, meter.task
    assert isinstance(task, SolvedTask)
    sets = (f"seed={arguments.seed}", f"threads={arguments.threads}", f"evaluation.every={task.every}")
    config = load_config(ROOT / task.config, (*sets, "vectorization=sync"))  # as the peers
    result = get_algorithm(task.algo).train(config, [Clock(meter)])
    meter.finish(result.num_timesteps, PACKAGES)


def main() -> None:
    meter = Meter(parse_arguments())
    if isinstance(TASKS[meter.arguments.task], SolvedTask):
        train_until_solved(meter)
    elif meter.arguments.contestant == TRACKED:
        train_tracked(meter)
    else:
        train_alone(meter)


if __name__ == "__main__":
    main()
