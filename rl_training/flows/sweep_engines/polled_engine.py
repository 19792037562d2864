"""The engine of sweeps that run elsewhere: it hands segments to a cluster, and asks the cluster how they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.plan import RunRecord

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
SAVE_SECONDS = 18.0
"""Time for the segments to save when the sweep is stopped, a little less than a flow has."""


class Cluster(Protocol):
    """Processes on this or other machines that train segments; no call waits for one."""

    def submit(self, segment: Segment) -> Any:
        """Hands a segment over, and returns a handle for it; it begins once there is room.

        Raises:
            UserError: The cluster can't take the segment.
        """

    def poll(self, handles: Mapping[str, Any]) -> Iterator[tuple[str, RunRecord | Lost]]:
        """Yields the keys of the segments that have ended, with what came of them.

        Args:
            handles: The handles of the segments that have not ended, by key.

        Raises:
            UserError: A node can't train segments of this sweep, whichever it is given.
        """

    def stop(self, handles: Sequence[Any]) -> None:
        """Asks segments to save and end; `poll` tells when they have."""

    def close(self) -> None:
        """Ends what was started for the sweep."""


class PolledEngine:
    """Runs the segments of a sweep on a cluster.

    Args:
        cluster: The cluster, which this engine closes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._handles: dict[str, Any] = {}
        self._is_stopping = False

    def run(self, segments: Sequence[Segment], stop: StopFlag) -> Iterator[tuple[Segment, RunRecord | Lost]]:
        """Runs the segments; see `Engine.run`."""
        by_key = {segment.key: segment for segment in segments}
        try:
            for segment in segments:
                self._handles[segment.key] = self._cluster.submit(segment)
            while self._handles and not stop.requested:
                for key, outcome in self._poll():
                    yield by_key[key], outcome
                time.sleep(POLL_SECONDS if self._handles else 0.0)
            for key, record in self._stop():
                yield by_key[key], record
        finally:
            self._drop_segments()

    def _drop_segments(self) -> None:
        """Stops the segments that have not ended, for example after an error; does not wait for them."""
        handles, self._handles = list(self._handles.values()), {}
        if handles and not self._is_stopping:
            self._cluster.stop(handles)

    def close(self) -> None:
        """Ends what the engine has started."""
        self._drop_segments()
        self._cluster.close()

    def _poll(self) -> list[tuple[str, RunRecord | Lost]]:
        ended = list(self._cluster.poll(self._handles))
        for key, outcome in ended:
            del self._handles[key]
            if isinstance(outcome, Lost):
                logger.warning("trial %s is lost: %s", key, outcome.reason)
        return ended

    def _stop(self) -> Iterator[tuple[str, RunRecord]]:
        """Lets the segments save; yields the records of those that were just complete."""
        if not self._handles:
            return
        self._is_stopping = True
        self._cluster.stop(list(self._handles.values()))
        deadline = time.monotonic() + SAVE_SECONDS
        while self._handles and time.monotonic() < deadline:
            yield from self._poll_stopped()
            time.sleep(POLL_SECONDS if self._handles else 0.0)
        if self._handles:
            logger.warning("%d trials did not end within %.0f s", len(self._handles), SAVE_SECONDS)

    def _poll_stopped(self) -> Iterator[tuple[str, RunRecord]]:
        for key, outcome in list(self._cluster.poll(self._handles)):
            del self._handles[key]
            if isinstance(outcome, RunRecord):
                yield key, outcome
