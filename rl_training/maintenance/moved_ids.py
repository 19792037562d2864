"""The ids that runs and logged models have in the new store, and texts that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MOVED_FROM = "rl_training.moved_from"
"""Tag of a run, a logged model or a registered version in the new store: its id in the old store."""
COMPLETE = "rl_training.move_complete"
"""Tag of a run or logged model that has been moved completely; of a run, when it had ended."""

_ID = re.compile(r"\bm-[0-9a-f]{32}\b|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


@dataclass
class MovedIds:
    """The new id of each run and logged model, by its old one."""

    runs: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)

    def translate(self, text: str) -> str:
        """Returns a text with new ids in place of old ones; other ids, such as a `run_uid`, stay."""
        return _ID.sub(lambda found: self.runs.get(found[0]) or self.models.get(found[0]) or found[0], text)

    def translate_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Returns tags as the new store has them."""
        return {key: self.translate(value) for key, value in tags.items()}
