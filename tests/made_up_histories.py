"""Sweeps whose trials are never trained: a method is told what came of each step."""

from collections.abc import Callable
from typing import Any

from rl_training.sweeps.loading import Sweep, load_sweep
from rl_training.sweeps.methods import make_method
from rl_training.sweeps.plan import Method, Outcome, Round, RunRecord, Step

BASE: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 900,
    "num_envs": 2,
    "rollout_steps": 50,
    "batch_size": 50,
    "seed": 5,
    "evaluation": {"every": 100, "episodes": 3, "video": False},
}
"""Settings that allow up to nine evaluations."""

SPACE: dict[str, Any] = {"learning_rate": {"log_range": [1e-4, 1e-2]}, "gamma": {"range": [0.9, 0.999]}}

Score = Callable[[Step], float | str]
"""Returns the score of a step, or the state of a trial without one: `failed` or `pruned`."""


def make_sweep(**settings: Any) -> Sweep:
    """Returns a sweep over `BASE`; `config` adds to the base config."""
    return load_sweep({"space": SPACE, **settings, "config": {**BASE, **settings.get("config", {})}})


def _end(step: Step, score: float | str, early: int | None) -> Outcome:
    """Returns the outcome of a step; runs stop exactly where they are told."""
    done = step.until == BASE["total_timesteps"] or step.trial == early
    state = score if isinstance(score, str) else "complete" if done else "paused"
    value = None if isinstance(score, str) else score
    runs = [
        RunRecord(seed, f"uid-{step.trial}", None, "dir", state, step.until, {}, "sha")  # type: ignore[arg-type]
        for seed in step.seeds
    ]
    return Outcome(state, value, tuple(runs))  # type: ignore[arg-type]


def play(method: Method, score: Score, early: int | None = None) -> list[Round]:
    """Returns all rounds of a search in which each step has the score that `score` returns.

    The trial `early` reaches its return by its first step.
    """
    rounds: list[Round] = []
    while steps := method.plan(rounds):
        rounds.append(Round(tuple(steps), tuple(_end(step, score(step), early) for step in steps)))
    assert method.plan(rounds) == []
    return rounds


def plan_again(sweep: Sweep, rounds: list[Round]) -> list[tuple[Step, ...]]:
    """Returns the steps of each round, each planned by another method from the rounds before it."""
    return [tuple(make_method(sweep).plan(rounds[:count])) for count in range(len(rounds))]


def summarize(rounds: list[Round]) -> list[tuple[int, list[int]]]:
    """Returns the step at which each round ends, and its trials."""
    assert all(len({step.until for step in each.steps}) == 1 for each in rounds)
    return [(each.steps[0].until, [step.trial for step in each.steps]) for each in rounds]
