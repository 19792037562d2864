"""One run of ours through the public interface, as a user would; see `speed_meter.py`.

`ours` is `train_ppo(config)` and its like, with no evaluation and no checkpoint on the way, as in the peers: what is
left is a checkpoint before the first step and one after the last, and one episode of evaluation at the end.
`ours-split` is the same with the environments in equal shares, one in this process and one for each further CPU.
`tracked` is `rl-training train` with all that is shipped: metrics, MLflow, checkpoints, evaluations and the progress
display. It also has `orchestration`: how long the training thread was in callbacks and in the saver, as a share of the
time inside `Trainer.train()` without its evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.provenance import ROOT
from benchmarks.speed.meter import Meter, parse_run
from benchmarks.speed.tasks import SPLIT, TASKS, TRACKED, SolvedTask, SpeedTask, Task
from rl_training import Callback, TrainConfig, TrainerState, TrainResult, load_config, train_dqn, train_ppo, train_sac
from rl_training.experiment.loading import config_from_mapping

PACKAGES = ("rl-training", "torch", "numpy", "gymnasium")
TRAIN: dict[str, Callable[[Any, Sequence[Callback]], TrainResult]] = {
    "ppo": train_ppo,
    "dqn": train_dqn,
    "sac": train_sac,
}
NEVER = 10**12
ALONE = {
    "evaluation": {"every": NEVER, "episodes": 1, "video": False},
    "checkpoint": {"every": NEVER},
}
"""No evaluation and no checkpoint on the way."""


class Clock(Callback):
    """Tells the meter of the run, and ends a run that is solved."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_train_start(self, state: TrainerState) -> None:
        """The first step is next."""
        self._meter.begin()

    def on_update_end(self, state: TrainerState) -> None:
        """Updates are over: the window may open, or close."""
        self._meter.updated(state.num_timesteps)

    def on_eval_end(self, state: TrainerState) -> None:
        """Ends the run where this evaluation has solved the task."""
        assert state.evaluation is not None  # the event's own contract
        self._meter.judge(state.num_timesteps, state.evaluation.return_mean)
        if self._meter.solved is not None:
            state.request_stop()


class Stopwatch:
    """Sums the time in several functions up; of those that call each other, each second counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def watch(self, owner: Any, *names: str) -> None:
        """Times these methods of a class from here on."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            began, self._depth = time.perf_counter(), self._depth + 1
            try:
                return function(*words, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - began

        return call


def speed_config(task: Task, threads: int, seed: int, **more: Any) -> TrainConfig:
    """Returns a task's settings without evaluations and checkpoints on the way, with `more` in place of any of them."""
    steps = {"algo": task.algo, "env_id": task.env_id, "total_timesteps": task.steps}
    return config_from_mapping({**steps, **task.settings, "threads": threads, "seed": seed, **ALONE, **more})


def train_alone(meter: Meter) -> None:
    """Trains a task of the speed table."""
    arguments, task = meter.arguments, meter.task
    more = {"vectorization": "split"} if arguments.contestant == SPLIT else {}
    result = TRAIN[task.algo](speed_config(task, arguments.threads, arguments.seed, **more), [Clock(meter)])
    meter.finish(result.num_timesteps, PACKAGES)


def train_tracked(meter: Meter) -> None:
    """Trains the same with all that is shipped, and says what that took of the training thread's time."""
    from rl_training.api.training import run_training
    from rl_training.cli.progress_display import make_progress
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
    config = speed_config(
        task,
        arguments.threads,
        arguments.seed,
        total_timesteps=task.tracked_steps,
        checkpoint=shipped,
        evaluation=shipped | {"final_episodes": 1, "video": False},
    )
    summary = run_training(config, [Clock(meter), make_progress()])
    seconds = {"train_seconds": training.seconds, "evaluation_seconds": evaluation.seconds}
    share = around.seconds / (training.seconds - evaluation.seconds)
    meter.finish(summary.num_timesteps, PACKAGES, **seconds, around_seconds=around.seconds, orchestration=share)


def train_until_solved(meter: Meter) -> None:
    """Trains a shipped config, evaluated as often as the peers are, until it is solved."""
    arguments, task = meter.arguments, meter.task
    assert isinstance(task, SolvedTask)
    sets = (f"seed={arguments.seed}", f"threads={arguments.threads}", f"evaluation.every={task.every}")
    config = load_config(ROOT / task.config, sets)
    result = TRAIN[task.algo](config, [Clock(meter)])
    meter.finish(result.num_timesteps, PACKAGES)


def main() -> None:
    meter = Meter(parse_run())
    if isinstance(TASKS[meter.arguments.task], SolvedTask):
        train_until_solved(meter)
    elif meter.arguments.contestant == TRACKED:
        train_tracked(meter)
    else:
        train_alone(meter)


if __name__ == "__main__":
    main()
