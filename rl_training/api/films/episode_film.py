"""A film of one episode as an animated GIF that is small enough for a browser.

The episode is played in a separate environment in a separate process. If the renderer is missing, hangs or crashes,
only the film is lost. No measurement depends on it.
"""

from __future__ import annotations

import io
import time
from contextlib import closing

import numpy as np
import numpy.typing as npt
from PIL import Image

from rl_training.api.films.filmed_env import FilmedEnv
from rl_training.config.settings import TrainConfig
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.policy import Policy
from rl_training.runtime.recurrent_policy import EpisodeActor
from rl_training.system.paths import keep_working_folder

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
    with keep_working_folder(), closing(FilmedEnv(config, answer_seconds=ANSWER_SECONDS)) as env:
        frames, stride = _play(policy, env, seed, stop)
        return _encode_gif(frames, stride * env.frame_seconds)


def _play(policy: Policy, env: FilmedEnv, seed: int, stop: StopFlag | None) -> tuple[list[Image.Image], int]:
    """Returns at most `MOST_FRAMES` frames at equal distances and that distance in steps.

    The length of the episode is unknown, so the distance doubles each time the list is full.
    """
    frames: list[Image.Image] = []
    step, stride, over = 0, 1, False
    observation, actor = env.reset(seed), EpisodeActor(policy)
    end = time.monotonic() + PLAY_SECONDS
    while not over and time.monotonic() < end:
        if stop is not None and stop.requested:
            raise StopTraining
        if step % stride == 0:
            if len(frames) == MOST_FRAMES:
                frames, stride = frames[::2], 2 * stride
            if step % stride == 0:
                frames.append(_shrink(env.render()))
        (action,) = actor.act([seed], [observation])
        observation, _, over = env.step(action)
        step += 1
    frames.append(_shrink(env.render()))
    return frames, stride


def _shrink(frame: npt.NDArray[np.uint8]) -> Image.Image:
    """Returns a rendered frame as a picture of at most `WIDTH` x `WIDTH` pixels."""
    picture = Image.fromarray(frame)
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
