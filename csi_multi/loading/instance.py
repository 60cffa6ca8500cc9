"""One configured backend instance: its backend object, and whether its storage can be used now."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from ..contract.backend import Backend
from ..contract.errors import StorageError
from .backend_proxy import BackendProxy, error_text
from .check_schedule import CheckSchedule

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Instance:
    """One configured backend and whether its storage answered the last check."""

    name: str
    kind: str
    backend: Backend
    package: str = ""  # what it was installed from, and the version
    down_reason: str = ""  # "" while up
    remote: bool = False  # its volumes are on the nodes of a cluster, whose drivers do all work on them
    changed_at: float | None = None  # when it went up or down, time.time(); None: not checked yet
    proxy: BackendProxy = field(init=False, repr=False)
    retired: bool = False  # not checked any more
    schedule: CheckSchedule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.schedule = CheckSchedule(self.backend.check_only_asks)

    def install_proxy(self, unshared: bool) -> None:
        """Put the proxy before the backend's methods; `unshared`: no other instance needs threads."""
        self.proxy = BackendProxy(
            self.name, self.kind, self.package or f"module {type(self.backend).__module__}", unshared
        )
        self.proxy.record = self.schedule.record
        self.proxy.install(self.backend)

    def resume(self) -> None:
        """Let the backend finish what an earlier process left; a failure is logged."""
        try:
            self.backend.resume()
        except Exception:
            log.exception("backend %s: resuming earlier work failed", self.name)

    def check(self) -> None:
        """Check the storage; log when its state changes."""
        self.schedule.begin()
        try:
            self.backend.check()
            self.set_state("")
        except StorageError as error:
            self.set_state(error_text(error) or type(error).__name__)
        except Exception:
            log.exception("backend %s: check failed unexpectedly", self.name)
            self.set_state("its check failed unexpectedly; the log has the details")
        finally:
            self.schedule.end()

    def retire(self) -> None:
        """Let the checks end."""
        self.retired = True
        self.schedule.retire()

    def close(self) -> None:
        try:
            self.backend.close()
        except Exception:
            log.exception("backend %s: closing it failed", self.name)

    def set_state(self, down_reason: str) -> None:
        """Store why the instance cannot serve ("" if it can); log it when it changes."""
        if down_reason != self.down_reason or self.changed_at is None:
            log.log(
                logging.WARNING if down_reason else logging.INFO,
                "backend %s is %s",
                self.name,
                f"down: {down_reason}" if down_reason else "up",
            )
        if bool(down_reason) != bool(self.down_reason) or self.changed_at is None:
            self.changed_at = time.time()
        self.down_reason = down_reason
