"""Checks, before training, that the rollout buffer fits into the memory that this process may use."""

from __future__ import annotations

from math import prod

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.buffer_memory import RESERVE, format_gigabytes, measure_available_memory, round_down
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import ConfigError, one_line
from rl_training.networks.recurrent.recurrent_layer import PARTS


def check_memory(
    config: PPOConfig, encoder: ObservationEncoder, codec: ActionCodec, available: int | None = None
) -> None:
    """Checks that a rollout fits into the `available` bytes, by default into `measure_available_memory()`.

    Raises:
        ConfigError: The rollout does not fit; the message has the calculation, and what to lower.
    """
    available = measure_available_memory() if available is None else available
    obs_bytes, action_bytes = (prod(part.shape) * part.dtype.itemsize for part in (encoder, codec))
    memory_bytes = _count_memory_bytes(config)
    each, usable = obs_bytes + action_bytes + 6 * 4 + 2 + memory_bytes, int(available * (1 - RESERVE))
    needed = config.rollout_steps * config.num_envs * each
    if needed <= usable:
        return
    fitting = round_down(usable // (each * config.num_envs), 1)
    if fitting:
        instead = f"rollout_steps {fitting:,} would fit, or fewer num_envs"
    else:
        instead = (
            f"not even one step of {config.num_envs:,} environments fits; lower num_envs, or make observations smaller"
        )
    raise ConfigError(
        f"rollout_steps x num_envs: {config.rollout_steps:,} x {config.num_envs:,} x ({obs_bytes:,} + {action_bytes:,} "
        f"+ 6 x 4 + 2{f' + {memory_bytes:,}' if memory_bytes else ''}) bytes (encoded observation "
        f"{one_line(encoder.space)}, action, six numbers, two flags{', share of a memory' if memory_bytes else ''}) = "
        f"{format_gigabytes(needed)}, and this process may use {format_gigabytes(available)}, of which a tenth is left "
        f"to everything else; {instead}"
    )


def _count_memory_bytes(config: PPOConfig) -> int:
    """Returns the bytes of each transition's share of the memories that are stored once a sequence; 0 without any."""
    network = config.network
    if network.recurrent is None:
        return 0
    return -(-2 * PARTS[network.recurrent] * network.recurrent_size * 4 // config.sequence_steps)
