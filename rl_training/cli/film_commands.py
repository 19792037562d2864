"""The commands that show what a policy does: `record` and `enjoy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from rl_training.cli.options import AllowModule, Json, Source
from rl_training.cli.output import result_stream, write_result
from rl_training.cli.training_end import forbid_imports_from

if TYPE_CHECKING:
    from rl_training.api.films.played_episode import PlayedEpisode

Episodes = Annotated[int, Parameter(validator=validators.Number(gte=1), help="Number of episodes (default: 1).")]
Seed = Annotated[
    int | None,
    Parameter(validator=validators.Number(gte=0), help="Seed for the episodes (default: evaluation.seed)."),
]
Out = Annotated[Path, Parameter(help="The folder of the films (default: films).")]


def record(
    source: Source,
    *,
    episodes: Episodes = 1,
    seed: Seed = None,
    out: Out = Path("films"),
    allow_module: AllowModule = (),
    json: Json = False,
) -> int:
    """Film episodes of the greedy policy of a checkpoint, as animated WebP files that browsers show."""
    with forbid_imports_from(source), result_stream() as stream:
        from rl_training.api.films.recording import record as record_episodes

        played = record_episodes(source, episodes=episodes, seed=seed, out=out, allow_modules=allow_module)
        write_result(stream, _to_json(played), [str(episode.film) for episode in played], as_json=json)
        return 0


def enjoy(
    source: Source, *, episodes: Episodes = 1, seed: Seed = None, allow_module: AllowModule = (), json: Json = False
) -> int:
    """Show episodes of the greedy policy of a checkpoint in a window; Ctrl-C closes it."""
    with forbid_imports_from(source), result_stream() as stream:
        from rl_training.api.films.live_view import show_episodes

        played = show_episodes(source, episodes=episodes, seed=seed, allow_modules=allow_module)
        lines = [f"episode {i}: {', '.join(episode.words())}" for i, episode in enumerate(played, 1)]
        write_result(stream, _to_json(played), lines, as_json=json)
        return 0


def _to_json(played: tuple[PlayedEpisode, ...]) -> dict[str, Any]:
    return {"episodes": [episode.to_dict() for episode in played]}
