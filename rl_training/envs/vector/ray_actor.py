"""The code of a Ray actor, which steps a group of environments for a trainer; `ray_worker` asks it.

This module imports nothing of an environment, so that `make` can exclude received directories from imports first.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_CHANGING = ("reset", "restore", "set_attr", "set_reset_options")
"""Methods of `EnvGroup` after which a replay must begin from a new snapshot."""


class Answer(NamedTuple):
    """What an actor returns for each request."""

    replies: list[tuple[str, Any]]
    """See `answers.Reply`; empty if all of a step or of its resets succeeded and no infos were asked for."""
    results: list[NDArray[Any]]
    """The newest results of all environments of the group; see `StepRows.copy`. Empty after an error."""
    snapshots: dict[int, dict[str, Any]]
    """The snapshot of each environment whose replay begins here, by its index."""


class EnvActor:
    """Steps, resets and closes the environments of one actor; each method serves one request of `RayWorker`."""

    def make(
        self,
        imports: tuple[Sequence[str], Sequence[str]],
        fields: Mapping[str, Any],
        indices: range,
        secrets: Mapping[str, Mapping[str, str]],
    ) -> Answer:
        """Makes the environments; the replies are the spaces of each.

        Args:
            imports: The trainer's import path, and the directories from which nothing is imported.
            fields: The settings that `make_env` uses.
            indices: Indices of the environments within the run.
            secrets: See `collect_secrets`.
        """
        from rl_training.security.import_guard import exclude_from_imports

        path, excluded = imports
        sys.path += [folder for folder in path if folder not in sys.path]
        for folder in excluded:
            exclude_from_imports(folder)
        from rl_training.config.action_mask import MaskedActionsConfig
        from rl_training.envs.single_env import make_env
        from rl_training.envs.vector.env_group import EnvGroup, require_same_spaces
        from rl_training.envs.vector.step_rows import StepRows
        from rl_training.errors import UserError
        from rl_training.security.secrets import register_secrets

        register_secrets(secrets)
        config = MaskedActionsConfig(**fields)
        self._indices, self._rows = indices, slice(indices.start, indices.stop)
        self._group = EnvGroup(config)
        try:
            self._group.make(indices, partial(make_env, config))
            require_same_spaces(config.env_id, self._group.spaces)
        except UserError as error:
            self._group.close()
            return Answer([("refused", str(error))], [], {})
        self._group.rows = StepRows(*self._group.spaces[0], indices.stop, len(self._group.numbers.names))
        return Answer([("ok", pair) for pair in self._group.spaces], [], {})

    def step(self, actions: NDArray[Any], with_infos: bool) -> Answer:
        """Steps each environment with its row of `actions` [n, *A]; the replies are the infos, if asked for."""
        from rl_training.envs.episodes.sent_infos import copy_plain_info
        from rl_training.envs.vector.answers import attempt

        infos: list[dict[str, Any]] | None = [] if with_infos else None
        # A copy, because the arrays that Ray brings can't be written to, and an environment may change its action.
        reply = attempt(self._group.step, actions.copy(), infos)
        if reply[0] != "ok":
            return Answer([reply], [], {})
        return Answer([("ok", copy_plain_info(info)) for info in infos or ()], self._group.rows.copy(self._rows), {})

    def begin_episodes(self, ended: NDArray[np.bool_]) -> Answer:
        """Begins the next episode of the environments that are marked in `ended` [n]."""
        from rl_training.envs.vector.answers import attempt

        self._group.rows.ended[self._rows] = ended
        reply = attempt(self._group.begin_episodes)
        if reply[0] != "ok":
            return Answer([reply], [], {})
        begun = [i for i, marked in zip(self._indices, ended, strict=True) if marked]
        return Answer([], self._group.rows.copy(self._rows), {i: self._group.snapshot(i) for i in begun})

    def answer(self, command: str, calls: Sequence[tuple[Any, ...]]) -> Answer:
        """Calls a method of the group for some environments, as `worker` does; there is a reply to each call."""
        from rl_training.envs.vector.answers import answer

        replies = [answer(self._group, command, call) for call in calls]
        try:
            pickle.dumps(replies)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            failed = f"the answer can't be sent between processes: {error}"
            return Answer([("failed", (failed, None))], [], {})
        changed = [call[0] for call in calls] if command in _CHANGING else []
        if any(kind != "ok" for kind, _ in replies):
            return Answer(replies, [], {})
        return Answer(replies, self._group.rows.copy(self._rows), {i: self._group.snapshot(i) for i in changed})

    def close(self) -> None:
        """Closes the environments."""
        if hasattr(self, "_group"):
            self._group.close()
