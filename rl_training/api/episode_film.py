"""A film of one episode as an animated GIF that is small enough for a browser.

The episode is played in a separate environment in a separate process. If the renderer is missing, hangs or crashes,
only the film is lost. No measurement depends on it.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator
from PIL import Image

from rl_training.config.settings import TrainConfig
from rl_training.envs.env_lookup import find_spec
from rl_training.envs.factory import make_env
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.errors import EnvironmentFault
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.policy import Policy

MOST_FRAMES = 100
MOST_BYTES = 2 * 2**20
WIDTH = 320
"""The largest width and height, in pixels."""
COLORS = 64

PLAY_SECONDS = 5.0
"""Time limit for the episode, after which the film ends."""
ANSWER_SECONDS = 10.0
"""Time limit for creating the environment, and for each call to the environment."""

LEAST_FRAME_SECONDS = 0.02
"""The shortest time for which browsers show a frame."""


def can_be_filmed(config: TrainConfig) -> bool:
    """Returns whether the environment can return pictures, by its metadata; no environment is created.

    Raises:
        EnvironmentRefused: The environment does not exist.
    """
    spec = find_spec(config.env_id)
    if spec.entry_point is None or config.env_kwargs.get("render_mode", "rgb_array") != "rgb_array":
        return False
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    metadata = getattr(creator, "metadata", None)
    return isinstance(metadata, Mapping) and "rgb_array" in metadata.get("render_modes", ())


def film_episode(policy: Policy, config: TrainConfig, seed: int, stop: StopFlag | None = None) -> bytes:
    """Plays one episode and returns it as a GIF.

    Args:
        policy: The policy; it acts greedily.
        config: The settings of a run whose environment `can_be_filmed`.
        seed: The seed for `reset(seed=...)`.
        stop: Polled between steps.

    Raises:
        EnvironmentFault: The environment can't be rendered, failed, or did not answer in time.
        EnvironmentRefused: The environment can't be created.
        StopTraining: `stop` was set.
    """
    rendered = {**config.env_kwargs, "render_mode": "rgb_array"}
    config = config.model_copy(update={"num_envs": 1, "env_kwargs": rendered})
    env = MaskedVectorEnv(config, [range(0), range(1)], partial(make_env, config), answer_seconds=ANSWER_SECONDS)
    try:
        (metadata,) = env.call("metadata")
        frames, stride = _play(policy, env, seed, stop)
    finally:
        env.close()
    return _encode_gif(frames, stride / float(metadata.get("render_fps") or 30))


def _play(policy: Policy, env: MaskedVectorEnv, seed: int, stop: StopFlag | None) -> tuple[list[Image.Image], int]:
    """Returns at most `MOST_FRAMES` frames at equal distances and that distance in steps.

    The length of the episode is unknown, so the distance doubles each time the list is full.
    """
    frames: list[Image.Image] = []
    step, stride, over = 0, 1, False
    ((observation, _),) = env.call("reset", seed=seed)
    end = time.monotonic() + PLAY_SECONDS
    while not over and time.monotonic() < end:
        if stop is not None and stop.requested:
            raise StopTraining
        if step % stride == 0:
            if len(frames) == MOST_FRAMES:
                frames, stride = frames[::2], 2 * stride
            if step % stride == 0:
                frames.append(_shrink(env.call("render")[0]))
        (action,) = policy.act([observation])
        ((observation, _, terminated, truncated, _),) = env.call("step", action)
        step, over = step + 1, terminated or truncated
    frames.append(_shrink(env.call("render")[0]))
    return frames, stride


def _shrink(frame: Any) -> Image.Image:
    """Returns a rendered frame as a picture of at most `WIDTH` x `WIDTH` pixels.

    Raises:
        EnvironmentFault: The frame is not uint8 [height, width, 3].
    """
    pixels: npt.NDArray[Any] = np.asarray(frame)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        got = f"an array of {pixels.dtype} {list(pixels.shape)}" if pixels.dtype != object else repr(frame)[:80]
        raise EnvironmentFault(f"render() returned {got}; expected uint8 [height, width, 3]")
    picture = Image.fromarray(pixels)
    picture.thumbnail((WIDTH, WIDTH), Image.Resampling.BOX)
    return picture


def _encode_gif(pictures: list[Image.Image], frame_seconds: float) -> bytes:
    """Returns a GIF of the pictures; while it is larger than `MOST_BYTES`, every second picture is dropped."""
    frames = [picture.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE) for picture in pictures]
    while True:
        file = io.BytesIO()
        milliseconds = round(1000 * max(frame_seconds, LEAST_FRAME_SECONDS))
        first, *rest = frames
        first.save(file, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0, optimize=True)
        if file.tell() <= MOST_BYTES or not rest:
            return file.getvalue()
        frames, frame_seconds = frames[::2], 2 * frame_seconds
