"""One run of a CleanRL script from a checkout, whose path stands in `CLEANRL`; see `speed_meter.py`.

The script is run as it is, with flags; only the widths of DQN's hidden layers, for which it has no flag, are set in a
temporary copy. What could not be made the same: DQN has no `gradient_steps` (one update each 2 steps stands for 128
each 256, the target copied as often), squared errors for Huber's loss, and no bound on the gradient's norm; SAC samples
once more for its temperature; PPO's clip range stays constant.
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

from benchmarks.speed.meter import Meter, Solved, parse_run
from benchmarks.speed.tasks import Task

PACKAGES = ("torch", "gymnasium", "numpy", "tensordict")
SCRIPTS = {"ppo": "ppo.py", "dqn": "dqn.py", "sac": "sac_continuous_action.py"}


def main() -> None:
    meter, checkout = Meter(parse_run()), Path(os.environ["CLEANRL"]).resolve()
    import gymnasium as gym
    import numpy as np
    import torch

    torch.set_num_threads(meter.arguments.threads)
    steps, num_envs, step = 0, meter.task.settings.get("num_envs", 1), gym.vector.SyncVectorEnv.step

    def counted(self: Any, actions: Any) -> Any:
        nonlocal steps
        result = step(self, actions)
        steps += num_envs
        meter.stepped(steps)
        return result

    def act(observations: Any) -> Any:
        script = sys.modules["__main__"].__dict__  # while it runs, it is the main module
        with torch.no_grad():
            x = torch.from_numpy(observations)
            if meter.task.algo == "sac":
                return script["actor"].get_action(x)[2].numpy()
            scores = script["agent"].actor(x) if meter.task.algo == "ppo" else script["q_network"](x)
            return np.asarray(scores.argmax(1))

    gym.vector.SyncVectorEnv.step = counted  # type: ignore[method-assign]
    meter.act = act
    script = checkout / "cleanrl" / SCRIPTS[meter.task.algo]
    with tempfile.TemporaryDirectory(prefix="cleanrl-") as work:
        if meter.task.algo == "dqn":
            script = with_hidden(script, Path(work), meter.task.settings["network"]["hidden"][0])
        os.chdir(work)  # it writes its records where it runs
        sys.path.insert(0, str(checkout))
        sys.argv = [script.name, *flags(meter.task, meter.arguments.seed)]
        with suppress(Solved):
            runpy.run_path(str(script), run_name="__main__")
        os.chdir(checkout)
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        meter.finish(steps, PACKAGES, checkout=commit)


def with_hidden(script: Path, folder: Path, width: int) -> Path:
    """Returns a copy of the DQN script with hidden layers of `width` in place of 120 and 84."""
    text, count = re.subn(r"\b(120|84)\b", str(width), script.read_text(encoding="utf-8"))
    if count != 4:
        raise RuntimeError(
            f"{script} has {count} widths of hidden layers, expected 4; is it the checkout that is meant?"
        )
    copy = folder / script.name
    copy.write_text(text, encoding="utf-8")
    return copy


def flags(task: Task, seed: int) -> list[str]:
    """Returns our settings as CleanRL's flags."""
    settings = task.settings
    words = {"env-id": task.env_id, "seed": seed, "total-timesteps": task.steps, "gamma": settings["gamma"]}
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
        return [*_flags(words), "--no-clip-vloss", "--anneal-lr" if anneal else "--no-anneal-lr"]
    words |= {name.replace("_", "-"): settings[name] for name in ("buffer_size", "batch_size", "learning_starts")}
    if task.algo == "sac":
        rate = settings["learning_rate"]
        return _flags(words | {"tau": settings["tau"], "policy-lr": rate, "q-lr": rate, "policy-frequency": 1})
    exploration, every = settings["exploration"], settings["train_freq"]
    return _flags(
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


def _flags(words: dict[str, Any]) -> list[str]:
    return ["--no-cuda", *(word for name, value in words.items() for word in (f"--{name}", str(value)))]


if __name__ == "__main__":
    main()
