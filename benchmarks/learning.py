"""Learning: several seeds of a shipped config, and how good their final policies are.

Each seed is `rl-training train --no-track` in a process of its own with one thread, one process a CPU. Judged is the
final policy, greedy, on 100 held-out episodes whose seeds no training or periodic evaluation uses. The aggregate is the
interquartile mean over the seeds with a 95 % bootstrap interval (Agarwal et al. 2021, "Deep Reinforcement Learning at
the Edge of the Statistical Precipice").

    python benchmarks/learning.py --config configs/ppo/cartpole.yaml --seeds 5
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, config_name, provenance, run_json, usable_cpus, write_json
from scipy import stats

EPISODES = 100


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(prefix="learning-") as home, ThreadPoolExecutor(usable_cpus()) as pool:
        runs = list(
            pool.map(
                lambda seed: train_seed(arguments.config, seed, arguments.set, Path(home)),
                range(arguments.first_seed, arguments.first_seed + arguments.seeds),
            )
        )
    returns = np.array([run["return_mean"] for run in runs])
    result = {
        "benchmark": "learning",
        "config": arguments.config,
        "overrides": arguments.set,
        "protocol": f"final policy, greedy, {EPISODES} held-out episodes a seed, the env's own return",
        "summary": summarize(returns),
        "seeds": runs,
        **provenance(),
    }
    name = f"learning-{config_name(arguments.config)}"
    path = write_json(name, result)
    plot(runs, arguments.config, RESULTS / f"{name}.png")
    for run in runs:
        print(f"seed {run['seed']}: {run['return_mean']:.2f} [{run['ci_low']:.2f}, {run['ci_high']:.2f}]")
    print(json.dumps(result["summary"]))
    print(f"written: {path}")


def train_seed(config: str, seed: int, overrides: list[str], home: Path) -> dict[str, Any]:
    """Trains one seed and returns its numbers."""
    sets = [f"seed={seed}", f"evaluation.final_episodes={EPISODES}", *overrides]
    flags = [word for override in sets for word in ("--set", override)]
    command = ["-m", "rl_training", "train", "--config", config, *flags, "--no-track", "--json"]
    summary = run_json(command, home / str(seed))
    evaluation = summary["evaluation"]
    return {
        "seed": seed,
        **{key: evaluation[key] for key in ("return_mean", "return_std", "ci_low", "ci_high", "episodes")},
        "num_timesteps": summary["num_timesteps"],
        "steps_per_second": summary["steps_per_second"],
        "policy_sha256": summary["policy_sha256"],
        "training_returns": read_curve(Path(summary["run_dir"]), "rollout/episode_return_mean"),
        "evaluation_returns": read_curve(Path(summary["run_dir"]), "eval/return_mean"),
    }


def read_curve(run_dir: Path, metric: str) -> list[tuple[int, float]]:
    """Returns (step, value) of one metric from a run's own log."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["step"], line["metrics"][metric]) for line in lines if metric in line.get("metrics", {})]


def summarize(returns: np.ndarray) -> dict[str, float]:
    """Returns the aggregate over seeds; the interval is left out where there are fewer than three."""
    summary = {
        "seeds": len(returns),
        "mean": float(returns.mean()),
        "lowest": float(returns.min()),
        "iqm": float(stats.trim_mean(returns, 0.25)),
    }
    if len(returns) >= 3:
        drawn = np.random.default_rng(0).choice(returns, (10_000, len(returns)))
        low, high = np.percentile(stats.trim_mean(drawn, 0.25, axis=1), [2.5, 97.5])
        summary |= {"iqm_low": float(low), "iqm_high": float(high)}
    return summary


def plot(runs: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draws each seed's return in training and in evaluation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for ax, curve, label in (
        (axes[0], "training_returns", "return in training, mean of 100 episodes"),
        (axes[1], "evaluation_returns", "return of the greedy policy in periodic evaluation"),
    ):
        for run in runs:
            if run[curve]:
                ax.plot(*zip(*run[curve], strict=True), label=f"seed {run['seed']}")
        ax.set(xlabel="environment steps", title=label)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("return")
    axes[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train several seeds of a config and judge their final policies.")
    parser.add_argument("--config", default="configs/ppo/cartpole.yaml")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="override a setting: key=value; repeatable")
    return parser.parse_args()


if __name__ == "__main__":
    main()
