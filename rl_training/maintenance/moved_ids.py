"""The ids that runs and logged models have in the new store, texts that name them, and marks of what has been moved."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MOVED_FROM = "rl_training.moved_from"
"""Tag of a run, a logged model or a registered version in the new store: its id in the old store."""
COMPLETE = "rl_training.move_complete"
"""Tag of what has been moved completely; of a run or registered model, the mark from `make_mark`."""

Standing = Literal["moved", "changed", "overtaken"]
"""How a copy stands: it has all of the original; the original is new or has changed since; or both have changed."""

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


def make_mark(copy: Any, original: Any) -> str:
    """Returns a mark of the state in which a copy was complete, and of what it was copied from."""
    return f"{_hash(copy)} {_hash(original)}"


def find_standing(mark: str | None, copy: Any, original: Any) -> Standing:
    """Returns how a copy stands.

    Args:
        mark: The mark that the last migration left, if one has copied everything.
        copy: The state of the copy now.
        original: All of the original now.
    """
    if mark is None:
        return "changed"
    marked_copy, _, marked_original = mark.partition(" ")
    if marked_original == _hash(original):
        return "moved"
    return "changed" if marked_copy == _hash(copy) else "overtaken"


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
