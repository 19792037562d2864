"""Allows one promotion of a model at a time, across flows, the command line and machines.

MLflow can't move an alias on the condition that it has not changed, so decisions on a model must exclude each other. If
the store is an SQLite file, a file lock beside it does this. If it is a server or another database, the registry holds
a lease: a registered model whose name ends in a number. Several processes may try to create the next number, but only
one of them succeeds. The holder renews its lease; a lease that is not renewed for `LEASE_SECONDS` is taken over. The
clocks of machines are not compared.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from rl_training.errors import TrackingError
from rl_training.tracking.mlflow_store import get_sqlite_path, no_resend

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

WAIT_SECONDS = 3600.0
"""How long to wait for another promotion, which may be playing its episodes."""

LEASE_SECONDS = 120.0
"""Time without renewal after which a lease may be taken over."""

LEASE_PREFIX = "promotion-lock"

_BEAT, _FREE = "beat", "free"


class PromotionLock:
    """The lock that is held while a promotion is decided."""

    def check(self) -> None:
        """Checks that the lock is still held; call this right before a write that needs the lock.

        Raises:
            TrackingError: The lock was lost.
        """


@contextmanager
def promotion_lock(client: MlflowClient, uri: str, model: str, wait: float = WAIT_SECONDS) -> Iterator[PromotionLock]:
    """Holds the lock of one registered model.

    Args:
        client: MLflow's client.
        uri: The tracking URI.
        model: The registered model's name.
        wait: Seconds to wait for another promotion to end.

    Raises:
        TrackingError: Another promotion did not end in time.
    """
    database = get_sqlite_path(uri)
    if database is None:
        with Lease(client, model).hold(wait) as lease:
            yield lease
        return
    lock = FileLock(database.with_name(f"{database.name}.{model}.promotion.lock"))
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise TrackingError(_format_busy(model, wait)) from None
    with lock:
        yield PromotionLock()


class Lease(PromotionLock):
    """A lock in the model registry.

    The entry with the highest number is the lock; it is held unless it is marked free or no longer renewed. A process
    takes the lock by creating the entry with the next number, in which only one process can succeed. An entry is only
    deleted if there is a higher entry, so the highest number is never lost.

    Args:
        client: MLflow's client.
        model: The registered model's name.
        seconds: Time without renewal after which the lease may be taken over.
    """

    def __init__(self, client: MlflowClient, model: str, seconds: float = LEASE_SECONDS) -> None:
        self._client, self._model, self._seconds = client, model, seconds
        self._stem = f"{LEASE_PREFIX}.{model}."
        self._number = 0
        self._owner = uuid.uuid4().hex
        self._poll = min(1.0, seconds / 10)

    @contextmanager
    def hold(self, wait: float) -> Iterator[Lease]:
        """Takes the lease, renews it while the block runs, and frees it."""
        self._take(time.monotonic() + wait, wait)
        done = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(done,), daemon=True)
        renewal.start()
        try:
            yield self
        finally:
            done.set()
            renewal.join()
            self._tag(_FREE, "true")

    def check(self) -> None:
        """Checks that no other process has taken the lease over.

        Raises:
            TrackingError: Another process has.
        """
        if max(self._entries(), default=0) != self._number:
            raise TrackingError(
                f"the promotion of {self._model!r} did not renew its lease and another one took over; try again"
            )

    def _take(self, deadline: float, wait: float) -> None:
        seen: tuple[int, str] | None = None
        since = time.monotonic()
        while True:
            entries = self._entries()
            highest = max(entries, default=0)
            tags = entries.get(highest, {_FREE: "true"})
            now = (highest, tags.get(_BEAT, ""))
            if now != seen:
                seen, since = now, time.monotonic()
            if (_FREE in tags or time.monotonic() - since > self._seconds) and self._create(highest + 1):
                return
            if time.monotonic() > deadline:
                raise TrackingError(_format_busy(self._model, wait))
            time.sleep(self._poll)

    def _create(self, number: int) -> bool:
        """Creates an entry; returns False if another process has created this entry or a higher one."""
        from mlflow.exceptions import MlflowException

        try:
            with no_resend():
                self._client.create_registered_model(
                    self._name(number),
                    tags={"owner": self._owner, _BEAT: uuid.uuid4().hex},
                    description=f"Lock of the promotions of {self._model}; created and removed by rl_training.",
                )
        except MlflowException:
            if self._entries().get(number, {}).get("owner") != self._owner:  # unless it is ours and the reply was lost
                return False
        entries = self._entries()
        if max(entries) != number:
            self._delete(number)
            return False
        self._number = number
        for old in entries:
            if old < number:
                self._delete(old)
        return True

    def _delete(self, number: int) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.delete_registered_model(self._name(number))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # the holder of a higher entry may have been faster
                raise

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(self._seconds / 4):
            self._tag(_BEAT, uuid.uuid4().hex)

    def _tag(self, key: str, value: str) -> None:
        try:
            self._client.set_registered_model_tag(self._name(self._number), key, value)
        except Exception as error:  # `check` notices if the lease is lost, and a lease that is not freed expires
            logger.warning("setting %s on the promotion lock of %s failed: %s", key, self._model, error)

    def _entries(self) -> dict[int, dict[str, str]]:
        found = self._client.search_registered_models(filter_string=f"name LIKE '{self._stem}%'")
        numbers = {entry.name.removeprefix(self._stem): entry.tags for entry in found}
        return {int(number): tags for number, tags in numbers.items() if number.isdigit()}

    def _name(self, number: int) -> str:
        return f"{self._stem}{number}"


def _format_busy(model: str, wait: float) -> str:
    return f"another promotion of {model!r} did not end within {wait:.0f} s; try again when it has"
