"""What interrupted creations and removals left in a store, found again only where something has changed."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from typing import Any

from .changes import Subscription
from .client import Client
from .entry_names import FLAGS
from .store import Store, leaf_of

log = logging.getLogger(__name__)


class Leftovers:
    """The incomplete entries of one store."""

    def __init__(self, store: Store[Any], client: Client) -> None:
        self._store = store
        self._client = client
        self._changed = Subscription(store.directory.changes)
        self._lock = threading.Lock()
        self._suspected: set[str] = set()  # that they may be incomplete

    def remove(self) -> None:
        """Remove those that no operation is at work on, as far as they can be removed. Raises OSError."""
        with self._lock:
            self._collect()
            for name in sorted(self._suspected):
                if not self._may_be_incomplete(name):
                    self._suspected.discard(name)
                    continue
                try:
                    self._remove(name)
                except (FileNotFoundError, NotADirectoryError, BlockingIOError):
                    continue  # removed meanwhile, foreign, in use
                except OSError as error:
                    log.warning("what an interrupted operation left cannot be removed yet: %s", error)

    def _collect(self) -> None:
        directory = os.open(self._store.path, FLAGS)
        try:
            changed = self._changed.take(directory)
            self._suspected |= set(os.listdir(directory) if changed is None else changed)
        except BaseException:
            self._changed.forget()
            raise
        finally:
            os.close(directory)

    def _may_be_incomplete(self, name: str) -> bool:
        """Whether an operation is building or removing it, or was interrupted; that shows no change of its name."""
        if not leaf_of(name):
            return False
        try:
            mode = (self._store.path / name).lstat().st_mode
        except OSError as error:
            return error.errno != errno.ENOENT
        return stat.S_ISDIR(mode) and (name != leaf_of(name) or bool(mode & stat.S_ISVTX))

    def _remove(self, name: str) -> None:
        path = self._store.path / name
        if name != leaf_of(name):
            with self._client.lock_entry(path):
                log.info("removing %s, which an interrupted operation left", path)
                self._client.remove(path)
        elif self._store.half_removed(name):
            self._store.finish_removal(name)
