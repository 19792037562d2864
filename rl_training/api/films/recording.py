"""Films of complete episodes at the environment's own frame rate, as animated WebP files.

A GIF can't show 60 frames a second and has 256 colours; a video needs an encoder that Pillow does not have.
"""

from __future__ import annotations

import io
import logging
import re
import zlib
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from rl_training.api.films.filmed_env import FilmedEnv, can_be_filmed, list_render_modes
from rl_training.api.films.played_episode import PlayedEpisode, Show, prepare_show, read_success
from rl_training.errors import EnvironmentFault, EnvironmentRefused, UserError
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.policy import require_same_spaces
from rl_training.runtime.recurrent_policy import EpisodeActor
from rl_training.system.download_directories import discard_downloads
from rl_training.system.durable_files import make_directory, replace_file
from rl_training.system.paths import keep_working_folder
from rl_training.system.signal_handlers import check_handlers

logger = logging.getLogger(__name__)

FOLDER = "films"
"""The folder of films, in the working folder, if no other is given."""

LARGEST = 16_383
"""The largest width and height of a WebP picture, in pixels."""


@discard_downloads()
def record(
    source: str | PathLike[str] | Checkpoint,
    *,
    episodes: int = 1,
    seed: int | None = None,
    out: str | Path = FOLDER,
    allow_modules: Collection[str] = (),
) -> tuple[PlayedEpisode, ...]:
    """Films episodes of the greedy policy of a source, in the environment of evaluation.

    The episodes are the first ones of a held-out evaluation with the same seed. Each film is an animated WebP file,
    which browsers and notebooks show, with the environment, the step of the checkpoint, return, length and success in
    its name. A film of the same name is replaced.

    Args:
        source: See `rl_training.load_policy`.
        episodes: The number of episodes.
        seed: The seed from which the episode seeds are drawn; by default `evaluation.seed`.
        out: The folder of the films; it is made if it is missing.
        allow_modules: Modules that a received checkpoint may import.

    Returns:
        The result of each episode, with the path of its film.

    Raises:
        CheckpointError: There is no good checkpoint.
        EnvironmentFault: The environment failed, or can't be rendered.
        EnvironmentRefused: The environment can't be made, or does not return pictures.
        ModuleRefused: A received checkpoint names a module that is not allowed.
        UserError: The source does not exist, or a film can't be written.
    """
    folder = Path(out).expanduser().absolute()  # because an environment may change the working folder
    show = prepare_show(source, episodes, seed, allow_modules)
    if not can_be_filmed(show.config):
        modes = ", ".join(list_render_modes(show.config)) or "none"
        raise EnvironmentRefused(
            f"environment {show.config.env_id!r} can't be filmed: its render modes are {modes}; expected rgb_array, in "
            f"its metadata and, if set, as env_kwargs.render_mode"
        )
    with keep_working_folder(), closing(FilmedEnv(show.config)) as env:
        require_same_spaces(show.policy, env, show.config.env_id)
        return tuple(_record_episode(show, env, number, folder) for number in range(episodes))


def _record_episode(show: Show, env: FilmedEnv, number: int, folder: Path) -> PlayedEpisode:
    logger.info("filming episode %d of %d", number + 1, len(show.seeds))
    frames = Frames()
    episode = _play(show, env, show.seeds[number], frames)
    path = folder / _make_file_name(show, number, episode)
    data = frames.encode(env.frame_seconds)
    try:
        make_directory(folder)
        replace_file(path, data, sync=False)
    except OSError as error:
        raise UserError(
            f"{path} can't be written: {error.strerror or error}; choose another folder for films"
        ) from None
    return replace(episode, film=path)


def _play(show: Show, env: FilmedEnv, seed: int, frames: Frames) -> PlayedEpisode:
    length, total, over = 0, 0.0, False
    observation, actor = env.reset(seed), EpisodeActor(show.policy)
    frames.add(env.render())
    while not over and length < show.config.evaluation.max_episode_steps:
        check_handlers()
        (action,) = actor.act([seed], [observation])
        observation, reward, over = env.step(action)
        frames.add(env.render())
        length, total = length + 1, total + reward
    success = read_success(env.read_numbers()) if over else None
    return PlayedEpisode(seed=seed, return_=total, length=length, success=success, cut=not over)


def _make_file_name(show: Show, number: int, episode: PlayedEpisode) -> str:
    env_id = re.sub(r"[^\w.-]+", "-", show.config.env_id.rpartition(":")[2])
    words = (word.replace(" ", "=") for word in episode.words())
    return "_".join((env_id, f"step={show.checkpoint.num_timesteps}", f"episode={number + 1}", *words)) + ".webp"


class Frames:
    """The frames of a film: compressed in memory, because an episode may have tens of thousands.

    Pillow saves it as it saves a picture of several frames, and reads one frame at a time.
    """

    mode = "RGB"

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._current = 0
        self.size = (0, 0)
        """Width and height in pixels."""

    @property
    def n_frames(self) -> int:
        """The number of frames."""
        return len(self._frames)

    def add(self, frame: npt.NDArray[np.uint8]) -> None:
        """Adds a frame, uint8 [height, width, 3].

        Raises:
            EnvironmentFault: The frame has another size than the ones before, or is too large for the format.
        """
        size = (frame.shape[1], frame.shape[0])
        if self._frames and size != self.size:
            raise EnvironmentFault(f"render() returned {size} pixels after {self.size}; a film has one size")
        if not 0 < min(size) <= max(size) <= LARGEST:
            raise EnvironmentFault(f"render() returned {size} pixels; a film has 1 to {LARGEST:,} in each direction")
        self.size = size
        self._frames.append(zlib.compress(frame.tobytes(), 1))

    def seek(self, number: int) -> None:
        """Makes a frame the current one."""
        self._current = number

    def getim(self) -> Any:
        """Returns the pixels of the current frame for Pillow's encoder."""
        return self._decompress(self._current).getim()

    def encode(self, frame_seconds: float) -> bytes:
        """Returns the film as animated WebP; each frame is shown for `frame_seconds`."""
        file = io.BytesIO()
        rest = Frames()
        rest.size, rest._frames = self.size, self._frames[1:]
        others: Any = [rest] if rest.n_frames else []
        options: Any = {"duration": 1000.0 * frame_seconds, "loop": 0, "lossless": True, "quality": 20, "method": 0}
        # Without loss, because the encoder would leave out frames that differ little.
        self._decompress(0).save(file, "WEBP", save_all=True, append_images=others, **options)
        return file.getvalue()

    def _decompress(self, number: int) -> Image.Image:
        return Image.frombytes("RGB", self.size, zlib.decompress(self._frames[number]))
