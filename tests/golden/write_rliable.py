"""Writes `rliable.json`: numbers of rliable, which does not run beside our pandas.

In an environment of its own:

    pip install rliable==1.2.0 arch==7.2.0 'pandas<3'
    python tests/golden/write_rliable.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rliable import library, metrics

REPS = 50_000
GAMMA = 1.0

rng = np.random.default_rng(7)
SCORES = {
    "one task, five runs": rng.normal(1.0, 0.4, (5, 1)),
    "one task, ten runs": rng.gamma(2.0, 0.5, (10, 1)),
    "one task, ties": np.array([[1.0], [1.0], [0.5], [1.0], [0.0], [0.5], [2.0]]),
    "three tasks": rng.normal([0.5, 1.0, 2.0], [0.2, 0.5, 0.3], (8, 3)),
    "four tasks": rng.exponential(1.0, (3, 4)),
}
PAIRS = [
    ("one task, five runs", "one task, ten runs"),
    ("one task, ties", "one task, ten runs"),
    ("one task, ties", "one task, ties"),
    ("three tasks", "three tasks of others"),
]
SCORES["three tasks of others"] = rng.normal([0.6, 1.0, 1.7], [0.2, 0.5, 0.3], (5, 3))
CURVES = np.cumsum(rng.normal(0.3, 0.5, (6, 2, 4)), axis=-1)  # runs, tasks, steps: rliable's order
THRESHOLDS = np.linspace(0.0, 2.5, 6)


def aggregate(scores):
    return np.array(
        [
            metrics.aggregate_mean(scores),
            metrics.aggregate_median(scores),
            metrics.aggregate_iqm(scores),
            metrics.aggregate_optimality_gap(scores, GAMMA),
        ]
    )


def aggregate_steps(scores):
    return np.array([metrics.aggregate_iqm(scores[..., step]) for step in range(scores.shape[-1])])


def compare(x, y):
    return np.array([metrics.probability_of_improvement(x, y)])


def estimate(scores, function):
    np.random.seed(0)
    values, intervals = library.get_interval_estimates({"it": scores}, function, reps=REPS)
    return {"values": values["it"].tolist(), "intervals": intervals["it"].tolist()}


def profile(scores):
    np.random.seed(0)
    values, intervals = library.create_performance_profile({"it": scores}, THRESHOLDS, reps=REPS)
    return {"values": values["it"].tolist(), "intervals": intervals["it"].tolist()}


record = {
    "versions": {name: version(name) for name in ("rliable", "arch", "numpy", "scipy", "pandas")},
    "reps": REPS,
    "gamma": GAMMA,
    "scores": {name: scores.tolist() for name, scores in SCORES.items()},
    "aggregates": {name: estimate(scores, aggregate) for name, scores in SCORES.items()},
    "improvements": [{"x": x, "y": y, **estimate([SCORES[x], SCORES[y]], compare)} for x, y in PAIRS],
    "thresholds": THRESHOLDS.tolist(),
    "profiles": {name: profile(SCORES[name]) for name in ("one task, ten runs", "three tasks")},
    "curves": {"scores": CURVES.tolist(), **estimate(CURVES, aggregate_steps)},
}
Path(__file__).with_name("rliable.json").write_text(json.dumps(record, indent=1) + "\n")
