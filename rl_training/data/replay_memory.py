"""Checks, before training, that the replay buffer fits into the memory that this process may use."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.data.buffer_memory import RESERVE, format_gigabytes, measure_available_memory, round_down
from rl_training.data.hindsight import END_BYTES
from rl_training.data.priorities import PRIORITY_BYTES
from rl_training.data.replay_frames import PLACE_BYTES, PLANE_RECORD_BYTES, count_planes
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import ConfigError, one_line


@dataclass(frozen=True)
class _Arithmetic:
    """Size of a replay buffer: `each` bytes for every transition, plus `fixed` bytes."""

    each: Fraction
    fixed: int
    text: str
    """The calculation in words, for a message that begins with the number of transitions."""

    def needed(self, size: int) -> int:
        return int(size * self.each) + self.fixed

    def fitting(self, usable: int) -> int:
        return max(0, int((usable - self.fixed) / self.each))


def check_memory(
    config: OffPolicyConfig, encoder: ObservationEncoder, codec: ActionCodec, available: int | None = None
) -> None:
    """Checks that the replay buffer fits into the `available` bytes, by default into `measure_available_memory()`.

    Raises:
        ConfigError: The buffer does not fit, and the message has the calculation and a size that fits; or
            `frame_channels` does not suit the observations.
    """
    frame_channels = config.frame_channels
    if frame_channels is not None:
        _check_frame_channels(frame_channels, encoder)
    available = measure_available_memory() if available is None else available
    arithmetic = _calculate(config, encoder, codec, frame_channels)
    needed, usable = arithmetic.needed(config.buffer_size), int(available * (1 - RESERVE))
    if needed <= usable:
        return
    fitting = round_down(arithmetic.fitting(usable), config.num_envs)
    instead = f"buffer_size {fitting:,} would fit"
    if frame_channels is None and encoder.kind == "image" and not encoder.mask_size:
        frame_channels = 3 if encoder.shape[0] == 3 else 1
        shared = _calculate(config, encoder, codec, frame_channels).needed(config.buffer_size)
        instead += (
            f"; frame_channels: {frame_channels}, which stores each frame once, would need {format_gigabytes(shared)}"
        )
    raise ConfigError(
        f"buffer_size: {config.buffer_size:,} x {arithmetic.text} = {format_gigabytes(needed)}, and this process may "
        f"use {format_gigabytes(available)}, of which a tenth is left to everything else; {instead}"
    )


def _check_frame_channels(frame_channels: int, encoder: ObservationEncoder) -> None:
    if encoder.mask_size:
        raise ConfigError(
            f"frame_channels: got {frame_channels} with an action mask, which is stored with each observation; leave "
            f"frame_channels out"
        )
    if encoder.kind != "image":
        raise ConfigError(
            f"frame_channels: got {frame_channels}, and observations are not images but {one_line(encoder.space)}; "
            f"only the channels of images are stored once; leave frame_channels out"
        )
    if encoder.shape[0] % frame_channels:
        raise ConfigError(
            f"frame_channels: got {frame_channels}, expected a divisor of {encoder.shape[0]}, the channels of an "
            f"observation {encoder.space}: 1 for a stack of grey frames, 3 for colour"
        )


def _calculate(
    config: OffPolicyConfig, encoder: ObservationEncoder, codec: ActionCodec, frame_channels: int | None
) -> _Arithmetic:
    obs_bytes, action_bytes = (prod(part.shape) * part.dtype.itemsize for part in (encoder, codec))
    own_bytes, own, named = action_bytes + 4 + 2, f"{action_bytes} + 4 + 2", "action, reward, two flags"
    if config.has_priorities:
        own_bytes, own, named = own_bytes + PRIORITY_BYTES, f"{own} + {PRIORITY_BYTES}", f"{named}, priority"
    if config.hindsight is not None:
        own_bytes, own, named = own_bytes + END_BYTES, f"{own} + {END_BYTES}", f"{named}, end of the episode"
    if frame_channels is None:
        return _Arithmetic(
            Fraction(2 * obs_bytes + own_bytes),
            0,
            f"(2 x {obs_bytes:,} + {own}) bytes (observation and next observation, {named})",
        )
    channels, pixels = encoder.shape[0], prod(encoder.shape[1:])
    plane_bytes = pixels + PLANE_RECORD_BYTES
    fixed = count_planes(0, config.num_envs, channels, frame_channels) * plane_bytes
    return _Arithmetic(
        Fraction(9, 8) * frame_channels * plane_bytes + 2 * channels * PLACE_BYTES + own_bytes,
        fixed,
        f"(9/8 x {frame_channels} x ({pixels:,} + {PLANE_RECORD_BYTES}) + 2 x {channels} x {PLACE_BYTES} + "
        f"{own}) bytes (new channels and an eighth for the first ones of episodes; where the channels "
        f"of observation and next observation are; {named}) + {fixed:,}",
    )
