"""What EC2 shows under the name of a snapshot or a group, and what it may not show yet.

EC2 has no client tokens for snapshots, so a name is looked up before anything is created. What this process has created
is remembered for a while, because EC2 may show it late. It may also show late what another process created just before
this one took over: when a sidecar becomes the leader, or after a restart. So for a while after the first request a name
that is not shown is looked for again.
"""

from __future__ import annotations

import threading
import time

from csi_multi.contract import Unavailable, leaf

from .batching import Batcher
from .consistency import ConsistencyWindow
from .ec2_cache import LONGEST_PAUSE, Ec2Cache
from .resources import Ec2Snapshot

RECENT_SECONDS = 300.0  # for how long something that was created is remembered


class NamedSnapshots:
    """Lookups by name of one kind. Thread-safe."""

    def __init__(self, cache: Ec2Cache, kind: str, lookup: Batcher[list[Ec2Snapshot]]) -> None:
        """`kind` is for error messages: "snapshot", "group snapshot"."""
        self._cache = cache
        self._kind = kind
        self._lookup = lookup
        self._window = ConsistencyWindow(cache.config.consistency_seconds)
        self._lock = threading.Lock()
        # By name: until when EC2 may not show it, and what is known of it.
        self._recent: dict[str, tuple[float, str]] = {}
        self._unreported: dict[str, str] = {}  # by name: the id of what was created, and not returned so far

    def created(self, name: str, id: str) -> None:
        """Remember that EC2 has created it, and may not show it at once."""
        self._remember(name, RECENT_SECONDS, _created_as(id))
        with self._lock:
            self._unreported[name] = id

    def unclear(self, name: str, error: Exception) -> None:
        """Remember that EC2 may have created it, although the call ended with this error."""
        self._remember(name, self._cache.config.consistency_seconds, f"may have been created ({error})")

    def reported(self, name: str) -> None:
        """Note that the caller gets the id."""
        with self._lock:
            self._unreported.pop(name, None)

    def unreported(self, name: str) -> str:
        """Return the id of what this process created and has not returned so far; "" when there is none."""
        return self._unreported.get(name, "")

    def deleted(self, id: str) -> None:
        """No longer expect EC2 to show it."""
        with self._lock:
            self._recent = {name: entry for name, entry in self._recent.items() if entry[1] != _created_as(id)}
            self._unreported = {name: own for name, own in self._unreported.items() if own != id}

    def named_before(self, name: str, deadline: float | None) -> list[Ec2Snapshot]:
        """Return what has this name as `named` does, also what another process created just before.

        Raises Unavailable at the deadline.
        """
        pause, ends = self._cache.config.poll_seconds, self._cache.wait_deadline(deadline)
        while True:
            left = self._window.left()
            found = self.named(name)
            if found or left <= 0:
                return found
            if time.monotonic() + min(pause, left) > ends:
                raise Unavailable(
                    f"{self._kind} {name!r} may have been created by another process just before this one took over, "
                    f"and EC2 does not show it yet; try again: it is created in {left:.0f} seconds if EC2 still does "
                    "not show it then"
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def named(self, name: str) -> list[Ec2Snapshot]:
        """Return the snapshots of this name, failed ones too, the oldest first.

        Raises Unavailable while EC2 may not show a recent one.
        """
        found = self.shown(name)
        until, known = self._recent.get(name, (0.0, ""))
        if not found and time.monotonic() < until:
            raise Unavailable(f"{self._kind} {name!r} {known} a moment ago, and EC2 does not show it yet; try again")
        return found

    def shown(self, name: str) -> list[Ec2Snapshot]:
        """Return what EC2 shows under this name, without what this process has deleted."""
        found = self._lookup.get(leaf(name), self._cache.wait_deadline(None)) or []
        return [one for one in found if not self._cache.was_deleted(one.id)]

    def _remember(self, name: str, seconds: float, known: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._recent = {name: entry for name, entry in self._recent.items() if entry[0] > now}
            self._recent[name] = (now + seconds, known)


def _created_as(id: str) -> str:
    return f"was created as {id!r}"
