"""One configured backend instance: its backend object, and whether its storage can be used now."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from ..contract.backend import Backend
from ..contract.errors import StorageError
from .backend_proxy import BackendProxy, error_text

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Instance:
    """One configured backend and whether its storage answered the last check."""

    name: str
    kind: str
    backend: Backend
    package: str = ""  # what it was installed from, and the version
    down: str = ""  # the reason, "" while up
    remote: bool = False  # its volumes are on the nodes of a cluster, and all work on them is done there
    since: float | None = None  # when it went up or down, time.time(); None: not known yet
    guard: BackendProxy = field(init=False, repr=False)
    retired: threading.Event = field(default_factory=threading.Event, repr=False)  # not checked any more

    def watch_over(self, alone: bool) -> None:
        """Put the guard before the backend's methods; `alone`: no other instance needs a thread."""
        self.guard = BackendProxy(
            self.name, self.kind, self.package or f"module {type(self.backend).__module__}", alone
        )
        self.guard.install(self.backend)

    def resume(self) -> None:
        """Finish what an earlier process left; a failure is logged."""
        try:
            self.backend.resume()
        except Exception:
            log.exception("backend %s: resuming earlier work failed", self.name)

    def check(self) -> None:
        """Ask the storage how it is; log when the answer changes."""
        try:
            self.backend.check()
            self.tell("")
        except StorageError as error:
            self.tell(error_text(error) or type(error).__name__)
        except Exception:
            log.exception("backend %s: check failed in an unexpected way", self.name)
            self.tell("its check failed in an unexpected way; see the log")

    def close(self) -> None:
        try:
            self.backend.close()
        except Exception:
            log.exception("backend %s: closing it failed", self.name)

    def tell(self, reason: str) -> None:
        """Keep why the instance cannot serve, "" if it can; log it when it is new."""
        if reason != self.down or self.since is None:
            log.log(logging.WARNING if reason else logging.INFO, "backend %s is %s", self.name, reason or "up")
        if bool(reason) != bool(self.down) or self.since is None:
            self.since = time.time()
        self.down = reason
