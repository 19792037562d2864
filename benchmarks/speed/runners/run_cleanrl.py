"""Runs one measured training of a CleanRL script; `CLEANRL` is the path of a checkout; see `meter.py`.

The script runs unchanged, with flags. Only the widths of DQN's hidden layers have no flag, and are changed in a
temporary copy. These differences remain: DQN has no `gradient_steps` (it makes one update every 2 steps instead of 128
updates every 256 steps, and copies the target network equally often), uses squared errors instead of the Huber loss,
and does not clip gradients; SAC samples once more for its temperature; PPO's clip range is constant. Its version of
Gymnasium has HalfCheetah-v4, whose physics are those of HalfCheetah-v5. For Atari it has wrappers of its own, which end
episodes with a life and clip rewards, and its DQN for images steps one environment, so it does not take part there.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.speed.meter import Meter, Solved, parse_arguments
from benchmarks.speed.tasks import Task

PACKAGES = ("torch", "gymnasium", "numpy", "tensordict")
SCRIPTS = {"ppo": "ppo.py", "dqn": "dqn.py", "sac": "sac_continuous_action.py"}
NORMALIZED, IMAGES = "ppo_continuous_action.py", "ppo_atari.py"


def main() -> None:
    meter, checkout = Meter(parse_arguments()), Path(os.environ["CLEANRL"]).resolve()
    import gymnasium as gym
    import numpy as np
    import torch

    torch.set_num_threads(meter.arguments.threads)
    steps, num_envs, step = 0, meter.task.settings.get("num_envs", 1), gym.vector.SyncVectorEnv.step

    def count_step(self: Any, actions: Any) -> Any:
        nonlocal steps
        result = step(self, actions)
        steps += num_envs
        meter.record_step(steps)
        return result

    def act(observations: Any) -> Any:
        script = sys.modules["__main__"].__dict__  # runpy runs the script as the main module
        with torch.no_grad():
            x = torch.from_numpy(observations)
            if meter.task.algo == "sac":
                return script["actor"].get_action(x)[2].numpy()
            scores = script["agent"].actor(x) if meter.task.algo == "ppo" else script["q_network"](x)
            return np.asarray(scores.argmax(1))

    gym.vector.SyncVectorEnv.step = count_step  # type: ignore[method-assign]
    meter.act = act
    script = checkout / "cleanrl" / choose_script(meter.task)
    with tempfile.TemporaryDirectory(prefix="cleanrl-") as work:
        if meter.task.algo == "dqn":
            script = set_hidden_width(script, Path(work), meter.task.settings["network"]["hidden"][0])
        os.chdir(work)  # the script writes to its working directory
        sys.path.insert(0, str(checkout))
        sys.argv = [script.name, *make_flags(meter.task, meter.arguments.seed)]
        with suppress(Solved):
            runpy.run_path(str(script), run_name="__main__")
        os.chdir(checkout)
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        meter.finish(steps, PACKAGES, checkout=commit)


def choose_script(task: Task) -> str:
    """Returns the name of the script that trains a task."""
    if any(task.settings.get("normalization", {}).values()):
        return NORMALIZED
    return IMAGES if "wrappers" in task.settings else SCRIPTS[task.algo]


def set_hidden_width(script: Path, folder: Path, width: int) -> Path:
    """Returns a copy of the DQN script with hidden layers of this width instead of 120 and 84."""
    text, count = re.subn(r"\b(120|84)\b", str(width), script.read_text(encoding="utf-8"))
    if count != 4:
        raise RuntimeError(
            f"{script} has {count} widths of hidden layers, expected 4; check that CLEANRL is the right checkout"
        )
    copy = folder / script.name
    copy.write_text(text, encoding="utf-8")
    return copy


def make_flags(task: Task, seed: int) -> list[str]:
    """Returns our settings as flags of CleanRL."""
    settings = task.settings
    env_id = task.env_id.replace("HalfCheetah-v5", "HalfCheetah-v4")
    words = {"env-id": env_id, "seed": seed, "total-timesteps": task.steps, "gamma": settings["gamma"]}
    if task.algo == "ppo":
        words |= {
            "num-envs": settings["num_envs"],
            "num-steps": settings["rollout_steps"],
            "num-minibatches": settings["num_envs"] * settings["rollout_steps"] // settings["batch_size"],
            "update-epochs": settings["epochs"],
            "learning-rate": settings["learning_rate"],
            "gae-lambda": settings["gae_lambda"],
            "clip-coef": settings["clip_range"],
            "ent-coef": settings["entropy_coef"],
            "vf-coef": settings["value_coef"],
            "max-grad-norm": settings["max_grad_norm"],
        }
        anneal = settings["learning_rate_schedule"] == "linear"
        return [*_join_flags(words), "--no-clip-vloss", "--anneal-lr" if anneal else "--no-anneal-lr"]
    words |= {name.replace("_", "-"): settings[name] for name in ("buffer_size", "batch_size", "learning_starts")}
    if task.algo == "sac":
        rate = settings["learning_rate"]
        return _join_flags(words | {"tau": settings["tau"], "policy-lr": rate, "q-lr": rate, "policy-frequency": 1})
    exploration, every = settings["exploration"], settings["train_freq"]
    return _join_flags(
        words
        | {
            "learning-rate": settings["learning_rate"],
            "start-e": exploration["start"],
            "end-e": exploration["end"],
            "exploration-fraction": exploration["fraction"],
            "train-frequency": every // settings["gradient_steps"],
            "target-network-frequency": max(every, settings["target_update_every"]),
        }
    )


def _join_flags(words: dict[str, Any]) -> list[str]:
    return ["--no-cuda", *(word for name, value in words.items() for word in (f"--{name}", str(value)))]


if __name__ == "__main__":
    main()
