"""`rl-training clean`: removes what nothing needs any more.

Registered versions, runs that can be resumed, sweeps, and records that are not sent yet stay, however old they are.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rl_training.errors import printable
from rl_training.maintenance.deleted_runs import find_deleted
from rl_training.maintenance.flow_runs import find_flow_runs, reach_flow_runs
from rl_training.maintenance.items import Item, StillNeeded
from rl_training.maintenance.needed_runs import find_resumable_flow_runs
from rl_training.maintenance.run_directories import find_run_directories
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cleaning:
    """What may be removed, or was removed."""

    items: Sequence[Item]
    kept: Mapping[str, int]
    """The number of things that stay, by reason."""
    notes: Sequence[str]
    done: bool
    """Whether the items were removed."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the cleaning for JSON."""
        items = [
            {"kind": item.kind, "name": item.name, "description": item.description, "bytes": item.size}
            for item in self.items
        ]
        total = _add_sizes(self.items) or 0
        return {"removed" if self.done else "removable": items, "bytes": total, "kept": dict(self.kept)}

    def lines(self) -> list[str]:
        """Returns the cleaning as text."""
        verb = "removed" if self.done else "can be removed"
        counts = Counter(item.kind for item in self.items)
        sizes = {kind: _add_sizes(item for item in self.items if item.kind == kind) for kind in counts}
        return [
            *(f"{verb}: {_describe(item)}{_format_size(item.size)}" for item in self.items),
            *(f"{verb}: {count} x {kind}{_format_size(sizes[kind])}" for kind, count in counts.items()),
            *([] if self.items else ["nothing can be removed" if not self.done else "nothing was removed"]),
            *(f"kept: {count} x {reason}" for reason, count in self.kept.items()),
            *(f"note: {note}" for note in self.notes),
        ]


def _describe(item: Item) -> str:
    return f"{item.kind} {item.name}{f' ({printable(item.description)})' if item.description else ''}"


def _add_sizes(items: Iterable[Item]) -> int | None:
    """Returns the bytes of all items whose size can be told; None if there is no such item."""
    sizes = [item.size for item in items if item.size is not None]
    return sum(sizes) if sizes else None


def _format_size(size: int | None) -> str:
    return "" if size is None else f", {format_bytes(size)}"


def format_bytes(number: int) -> str:
    """Returns a number of bytes for people."""
    return f"{number / 1e6:,.1f} MB" if number >= 100_000 else f"{number:,} bytes"


def find_removable(older_than: timedelta) -> Cleaning:
    """Returns what nothing needs any more; changes nothing.

    Args:
        older_than: Only what has not been used, or was deleted, so long ago.

    Raises:
        TrackingError: MLflow can't be reached; without it, nobody knows what is needed.
        UserError: The Prefect server does not answer.
    """
    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, "the cleaning"), reach_flow_runs() as tag:
        client = connect(uri)
        directories = find_run_directories(client, uri, older_than)
        leaving = {Path(item.name) for item in directories.items}
        deleted = find_deleted(client, uri, older_than, leaving)
        flow_runs = find_flow_runs(older_than, find_resumable_flow_runs(client), tag)
    found = (directories, deleted, flow_runs)
    return Cleaning(
        [item for findings in found for item in findings.items],
        {reason: count for findings in found for reason, count in findings.kept.items()},
        [note for findings in found for note in findings.notes],
        done=False,
    )


def remove_items(found: Cleaning) -> Cleaning:
    """Removes what was found, and returns what was removed; what is needed again by now stays.

    Raises:
        TrackingError: MLflow can't be reached; what remains is found again by the next cleaning.
        UserError: The Prefect server does not answer.
    """
    removed, kept = [], Counter(found.kept)
    reach = reach_flow_runs() if any(item.kind == "flow run" for item in found.items) else nullcontext()
    with translate_mlflow_errors(resolve_tracking_uri(), "the cleaning"), reach:
        for item in found.items:
            try:
                item.remove()
            except StillNeeded as reason:
                logger.warning("kept: %s", reason)
                kept[f"{item.kind}s: needed again"] += 1
                continue
            removed.append(item)
    return Cleaning(removed, kept, found.notes, done=True)
