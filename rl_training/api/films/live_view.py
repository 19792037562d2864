"""Shows episodes in a window, as they are played."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from os import PathLike
from typing import Any

from rl_training.api.films.filmed_env import list_render_modes
from rl_training.api.films.played_episode import PlayedEpisode, Show, prepare_show, read_success
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.envs.factory import make_env
from rl_training.envs.missing_extras import explain_missing_extra
from rl_training.errors import EnvironmentFault, EnvironmentRefused, UserError
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.policy import require_same_spaces
from rl_training.runtime.recurrent_policy import EpisodeActor
from rl_training.system.download_directories import discard_downloads
from rl_training.system.headless_rendering import has_display
from rl_training.system.paths import keep_working_folder
from rl_training.system.signal_handlers import check_handlers


@discard_downloads()
def show_episodes(
    source: str | PathLike[str] | Checkpoint,
    *,
    episodes: int = 1,
    seed: int | None = None,
    allow_modules: Collection[str] = (),
) -> tuple[PlayedEpisode, ...]:
    """Plays episodes of the greedy policy of a source in a window (`render_mode: human`); see `record`.

    Args:
        source: See `rl_training.load_policy`.
        episodes: The number of episodes.
        seed: The seed from which the episode seeds are drawn; by default `evaluation.seed`.
        allow_modules: Modules that a received checkpoint may import.

    Raises:
        CheckpointError: There is no good checkpoint.
        EnvironmentFault: The environment failed.
        EnvironmentRefused: The environment can't be made, or shows no window.
        ModuleRefused: A received checkpoint names a module that is not allowed.
        UserError: The source does not exist, there is no display, or a package that shows windows is missing.
    """
    if not has_display():
        raise UserError(
            "there is no display to show a window on (DISPLAY is not set); `rl-training record` writes films instead"
        )
    show = prepare_show(source, episodes, seed, allow_modules)
    if "human" not in (modes := list_render_modes(show.config)):
        listed = ", ".join(modes) or "none"
        raise EnvironmentRefused(
            f"environment {show.config.env_id!r} can't be shown in a window: its render modes are {listed}; expected "
            f"human; `rl-training record` needs rgb_array"
        )
    kwargs = {**show.config.env_kwargs, "render_mode": "human"}
    show = show._replace(config=show.config.model_copy(update={"env_kwargs": kwargs}))
    with keep_working_folder(), closing(make_env(show.config, 0)) as env:
        require_same_spaces(show.policy, env, show.config.env_id)
        return tuple(_play(show, env, episode_seed) for episode_seed in show.seeds)


def _play(show: Show, env: EpisodeReplay, seed: int) -> PlayedEpisode:
    info: dict[str, Any] = {}
    over = False
    try:
        actor = EpisodeActor(show.policy)
        observation, _ = env.reset(seed=seed)
        while not over and env.episode_length < show.config.evaluation.max_episode_steps:
            check_handlers()
            (action,) = actor.act([seed], [observation])
            observation, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
    except EnvironmentFault as error:
        if install := explain_missing_extra(error):
            raise UserError(f"a window can't be shown: {install}") from None
        raise
    success = read_success(EpisodeNumbers(show.config).collect(info, env.raw_return)) if over else None
    total, length = float(env.episode_return), env.episode_length
    return PlayedEpisode(seed=seed, return_=total, length=length, success=success, cut=not over)
