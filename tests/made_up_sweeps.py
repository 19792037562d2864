"""Sweeps whose rounds are made up, for the tests of what is computed from rounds."""

from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.plan import Outcome, Round, RunRecord, Step

TOTAL = 1_000

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": TOTAL, "seed": 3, "learning_rate": 0.001}

SPACE = {"learning_rate": {"log_range": [1e-4, 1e-2]}, "gamma": {"choice": [0.9, 0.99]}}


def make_sweep(**settings):
    """Loads a sweep of PPO on CartPole by random search."""
    return load_sweep({"config": BASE, "space": SPACE, "method": "random", "name": "made up", **settings})


def record(seed, score, state="complete", steps=TOTAL, held_out=None, **more):
    """Returns the record of a run whose newest evaluation, at its last step, is `score`."""
    return RunRecord(
        seed=seed,
        run_uid=f"{seed:032x}",
        run_id=f"{seed:032x}",
        run_dir=f"/runs/{seed}",
        state=state,
        num_timesteps=steps,
        evaluations={} if score is None else {steps: score},
        policy_sha256=None if score is None else "ab" * 32,
        held_out=held_out,
        **more,
    )


def trial(number, params, score, state="complete", steps=TOTAL, seeds=(3,), phase="search", held_out=(), runs=None):
    """Returns a step and its outcome; the runs all have the same score, and their held-out scores are given."""
    step = Step(number, params, tuple(seeds), until=steps, phase=phase)
    held_out = list(held_out) or [None] * len(seeds)
    made = [record(seed, score, state, steps, h) for seed, h in zip(seeds, held_out, strict=True)]
    return step, Outcome(state, score, tuple(runs or made))


def one_round(*trials):
    """Returns a round of such trials."""
    return Round(tuple(step for step, _ in trials), tuple(outcome for _, outcome in trials))


def point(number, learning_rate, score, *args, gamma=0.9, **kwargs):
    """Returns a trial of the search with these settings."""
    return trial(number, {"learning_rate": learning_rate, "gamma": gamma}, score, *args, **kwargs)
