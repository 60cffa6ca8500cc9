"""The temporary snapshots that copies are made from, and their removal after the answer.

The snapshot itself is the note that it is to be removed: a driver that starts removes what it finds (snapshots.py).
While a copy is made its snapshot is claimed, so that the removal for an earlier copy of the same name does not take it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from csi_multi.contract import Busy, ResourceExhausted, StorageError, Timeout, Unavailable

from .background import BackgroundWorker
from .client import Client

log = logging.getLogger(__name__)

RETRIED = (Busy, Unavailable, Timeout, ResourceExhausted)
ABANDONED_SECONDS = 60.0  # by then the request of a failed copy was repeated, or will not be


class TemporarySnapshots:
    """`client` runs its commands in the background. Thread-safe within this process."""

    def __init__(self, client: Client, settle: Callable[[Client, str], None], *, immediate: bool) -> None:
        """`settle` removes what is incomplete of the copy from a snapshot. `immediate`: the instance has no key, so
        nothing can be done after the request that brought one.
        """
        self.immediate = immediate
        self._client = client
        self._settle = settle
        self._worker = BackgroundWorker("rbd-snap-rm", self._remove)
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[threading.Lock, int]] = {}  # by image@snapshot: its lock, and who wants it
        self._copied: set[str] = set()  # image@snapshot whose copy is complete

    @contextmanager
    def claimed(self, image: str, snapshot: str) -> Iterator[None]:
        """Keep the snapshot from being removed by another thread in the block."""
        key = f"{image}@{snapshot}"
        with self._lock:
            lock, users = self._claims.get(key, (threading.Lock(), 0))
            self._claims[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._claims.pop(key)
                if users > 1:
                    self._claims[key] = (lock, users - 1)

    def remove_later(self, image: str, snapshot: str, *, copied: bool) -> None:
        """Have a claimed snapshot removed: at once where the copy is complete, later where its request may be repeated.

        Never fails: the next start finds it.
        """
        if self.immediate:
            return
        key = f"{image}@{snapshot}"
        with self._lock:
            if copied:
                self._copied.add(key)
            else:
                self._copied.discard(key)
        self._worker.submit(key, after=0.0 if copied else ABANDONED_SECONDS)

    def remove(self, client: Client, image: str, snapshot: str) -> None:
        """Remove a snapshot for a request, as `remove_claimed` does, when no other thread claims it."""
        with self.claimed(image, snapshot):
            self.remove_claimed(client, image, snapshot)

    def remove_claimed(self, client: Client, image: str, snapshot: str) -> None:
        """Remove a snapshot, and before it what is incomplete of the copy from it: the clone may name the snapshot as
        its parent, and the snapshot not the clone, which would then never be opened again.

        Raises FailedPrecondition when the copy holds data, Busy while another process is creating it.
        """
        key = f"{image}@{snapshot}"
        with self._lock:
            copied = key in self._copied
            self._copied.discard(key)
        if not copied:
            self._settle(client, snapshot)
        client.remove_snapshot(image, snapshot)
        self._worker.withdraw(key)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until all snapshots that can be removed are; return whether they are."""
        return self._worker.wait_until_idle(seconds)

    def close(self) -> None:
        self._worker.close()

    def _remove(self, key: str) -> None:
        image, _, snapshot = key.partition("@")
        with self.claimed(image, snapshot):
            try:
                self.remove_claimed(self._client, image, snapshot)
            except RETRIED:
                raise
            except StorageError as error:
                log.warning("the temporary snapshot %s is not removed: %s", self._client.spec(image, snapshot), error)
