"""Runs one measured training of rejax; see `meter.py`.

rejax compiles environments and training together, so a run is a few calls of one compiled function; the steps of a call
divide those of the warm-up and of the complete run. The environments are gymnax's, which are written in JAX.

rejax trains until its next evaluation, even beyond `total_timesteps`, so both have the length of a call.

- `compile_seconds`: time of compilation, which is also part of the start-up;
- `with_compilation`: all environment steps of the run per second of compilation and training.

These differences remain: gradients are clipped element by element; DQN uses squared errors instead of the Huber loss,
has two layers of 64 units that no argument changes, and lowers its exploration within each call instead of over the
run. The evaluation after each call is replaced by nothing.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

from benchmarks.speed.meter import Meter, parse_arguments
from benchmarks.speed.tasks import Task

PACKAGES = ("rejax", "gymnax", "jax", "flax", "optax", "numpy")


def main() -> None:
    meter = Meter(parse_arguments())
    # XLA starts a thread for each available core.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: meter.arguments.threads])
    import jax
    import rejax

    length = math.gcd(meter.warm, meter.steps)
    algorithm = rejax.get_algo(meter.task.algo).create(
        **translate(meter.task), total_timesteps=length, eval_freq=length, skip_initial_evaluation=True
    )
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, rng: ())
    began = time.time()
    state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(meter.arguments.seed))
    train = jax.jit(lambda state: algorithm.train(train_state=state)[0]).lower(state).compile()
    compiled = time.time()
    meter.begin()
    meter.close_window(0)
    for steps in range(length, meter.steps + 1, length):
        state = jax.block_until_ready(train(state))
        meter.close_window(steps)
    speed = meter.steps / (time.time() - began)
    if (taken := int(state.global_step)) != meter.steps:
        raise RuntimeError(
            f"rejax made {taken} environment steps, expected {meter.steps}; check the length of its calls"
        )
    meter.finish(meter.steps, PACKAGES, compile_seconds=compiled - began, with_compilation=speed)


def translate(task: Task) -> dict[str, Any]:
    """Returns our settings as arguments of rejax, whose environments have Gymnasium's names."""
    settings = task.settings
    activation, hidden = settings["network"]["activation"], tuple(settings["network"]["hidden"])
    words = {
        "env": task.env_id,
        "num_envs": settings.get("num_envs", 1),
        "learning_rate": settings["learning_rate"],
        "gamma": settings["gamma"],
    }
    if task.algo == "ppo":
        return words | {
            "num_steps": settings["rollout_steps"],
            "num_minibatches": settings["num_envs"] * settings["rollout_steps"] // settings["batch_size"],
            "num_epochs": settings["epochs"],
            "gae_lambda": settings["gae_lambda"],
            "clip_eps": settings["clip_range"],
            "ent_coef": settings["entropy_coef"],
            "vf_coef": settings["value_coef"],
            "max_grad_norm": settings["max_grad_norm"],
            "agent_kwargs": {"hidden_layer_sizes": hidden, "activation": activation},
        }
    words |= {
        "buffer_size": settings["buffer_size"],
        "fill_buffer": settings["learning_starts"],
        "batch_size": settings["batch_size"],
        "num_epochs": settings["gradient_steps"],
        "agent_kwargs": {"activation": activation},
    }
    if task.algo == "sac":
        return words | {"hidden_layer_sizes": hidden, "target_update_freq": 1, "polyak": 1 - settings["tau"]}
    exploration = settings["exploration"]
    return words | {
        "ddqn": False,
        "max_grad_norm": settings["max_grad_norm"],
        "target_update_freq": settings["target_update_every"],
        "polyak": 0.0,
        "eps_start": exploration["start"],
        "eps_end": exploration["end"],
        "exploration_fraction": exploration["fraction"],
    }


if __name__ == "__main__":
    main()
