"""Snapshots: create one per name, although EC2 has no client tokens for them, find, delete and list.

Before a snapshot is created its name is looked up, in one call for all lookups of that moment. The snapshots that this
process has created are remembered for a while, because EC2 may show them late. It may also show those late that another
process created just before this one took over: when a sidecar becomes the leader, or after a restart. So for a while
after the first request a name that is not shown is looked for again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Page,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Timeout,
    Unavailable,
    leaf,
)

from . import labels, outposts, snapshot_locks
from .caches import SingleUseCache
from .config import SnapshotParameters
from .consistency import ConsistencyWindow
from .ec2_cache import LONGEST_PAUSE, Ec2Cache
from .listing import Listing
from .resources import GIB, VOLUME_ID, Ec2Snapshot

log = logging.getLogger(__name__)

RECENT_SECONDS = 300.0  # for how long a snapshot that was created is remembered
FOUND_TTL = 1.0  # seconds from the AlreadyExists of a request until it asks which snapshot that is
MAX_FOUND = 1000  # snapshots that are remembered for that


class SnapshotManager:
    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._window = ConsistencyWindow(cache.config.consistency_seconds)
        # By name: until when EC2 may not show the snapshot, and what is known of it.
        self._recent: dict[str, tuple[float, str]] = {}
        self._found: SingleUseCache[Ec2Snapshot] = SingleUseCache(FOUND_TTL, MAX_FOUND)  # by name, for `find`
        self._unreported: dict[str, str] = {}  # by name: the id of one that was created, and not returned so far
        client, owner = cache.client, cache.owner
        self._listing = Listing(lambda token: client.snapshot_page(owner, 0, token), client.snapshots)

    def create(self, request: SnapshotRequest) -> Ec2Snapshot:
        """Create a snapshot, which is usable later. One that fails later is never replaced under its name.

        Raises AlreadyExists, NotFound, InvalidArgument, ResourceExhausted, and FailedPrecondition for a failed one.
        """
        cache, parameters = self._cache, request.parameters or SnapshotParameters()
        self._refuse_unknown_zones(parameters.fast_zones)
        snapshot_locks.refuse_past(parameters.lock)
        found = self._named_before(request)
        if good := _not_failed(found):
            self._delete_second(request.name, good)
            self._ensure_options(good[0], parameters)
            self._found.put(request.name, good[0])
            raise AlreadyExists(f"snapshot {request.name!r} already exists")
        if found:
            raise _failed(request.name, found[0])  # its id may have been reported, so no other replaces it
        if parameters.outpost_arn or not cache.is_own(request.source):
            volume = cache.volume(request.source)  # raises when it does not exist or is not ours
            outposts.refuse_snapshot_elsewhere(volume, parameters.outpost_arn)
        snapshot = self._create(request)
        if snapshot.state == "error":  # its id was never reported
            with suppress(StorageError):
                self._delete(snapshot.id)
            reason = snapshot.message or "no reason given"
            raise Unavailable(f"EC2 could not create snapshot {snapshot.id!r} ({reason}); try again")
        self._refuse_second(request.name, snapshot)
        self._set_options(snapshot, parameters)
        self._reported(request.name)
        return snapshot

    def _create(self, request: SnapshotRequest) -> Ec2Snapshot:
        """Call CreateSnapshot, and remember that EC2 may not show the snapshot at once, whatever EC2 answers."""
        cache = self._cache
        tags = labels.snapshot_tags(request, cache.setting, cache.config)
        outpost = (request.parameters or SnapshotParameters()).outpost_arn
        description = f"snapshot {request.name} of {request.source}"
        try:
            snapshot = cache.client.create_snapshot(request.source, tags, description, outpost)
        except (Unavailable, Timeout) as error:
            self._remember(request.name, cache.config.consistency_seconds, f"may have been created ({error})")
            raise
        cache.note_owner([snapshot])
        self._remember(request.name, RECENT_SECONDS, _created_as(snapshot.id))
        with self._lock:
            self._unreported[request.name] = snapshot.id
        return snapshot

    def _reported(self, name: str) -> None:
        with self._lock:
            self._unreported.pop(name, None)

    def _remember(self, name: str, seconds: float, known: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._recent = {name: entry for name, entry in self._recent.items() if entry[0] > now}
            self._recent[name] = (now + seconds, known)

    def _refuse_second(self, name: str, snapshot: Ec2Snapshot) -> None:
        """Raise AlreadyExists when another process created one before: the oldest stays, for all callers."""
        good = _not_failed(self._shown(name))  # where it fails, the retry does this (_delete_second)
        if good and good[0].id != snapshot.id and (good[0].created, good[0].id) < (snapshot.created, snapshot.id):
            self._delete(snapshot.id)
            raise AlreadyExists(f"snapshot {name!r} already exists as {good[0].id!r}")

    def _delete_second(self, name: str, good: list[Ec2Snapshot]) -> None:
        """Delete what an earlier request created after another process had, and could not compare then."""
        own = self._unreported.get(name)
        if own in [one.id for one in good[1:]]:
            with suppress(NotFound):
                self._delete(own)
        if own in [one.id for one in good]:
            self._reported(name)

    def find(self, name: str) -> Ec2Snapshot:
        """Return the snapshot of this requested name. Raises NotFound.

        That is the one for which `create` raised AlreadyExists a moment ago, without another lookup.
        """
        if just_found := self._found.take(name):
            return just_found
        if good := _not_failed(self._named(name)):
            return good[0]
        raise NotFound(f"snapshot {name!r} does not exist")

    def get(self, handle: str) -> Ec2Snapshot:
        """Raises NotFound, and FailedPrecondition for a snapshot of another owner."""
        return self._cache.snapshot(handle)

    def delete(self, handle: str) -> None:
        """Raises NotFound, InUse, and FailedPrecondition for a snapshot of another owner, and for a locked one.

        Its labels are looked up like those of a volume, and one that no lookup shows is deleted like such a volume
        (volumes.py).
        """
        known = self._cache.is_own(handle) or self._cache.shown_snapshot(handle)
        try:
            self._delete(handle)
        except StorageError as error:
            snapshot_locks.refuse_locked(self._cache.client, handle, error)
            raise
        if not known:
            log.warning(labels.NOT_CHECKED, "snapshot", handle)

    def _delete(self, id: str) -> None:
        """Delete the snapshot, and no longer expect EC2 to show it."""
        self._cache.client.delete_snapshot(id)
        self._cache.remember_deleted(id)
        with self._lock:
            self._recent = {name: entry for name, entry in self._recent.items() if entry[1] != _created_as(id)}
            self._unreported = {name: own for name, own in self._unreported.items() if own != id}

    def list_page(self, page: PageRequest, source: str | None) -> Page[Snapshot]:
        """Return one page of this instance's snapshots, of one volume if given. Raises InvalidToken."""
        if source is None:
            return self._listing.page(page, _converter)
        if not VOLUME_ID.fullmatch(source):
            return Page(items=())
        client, owner = self._cache.client, self._cache.owner
        listing = Listing(lambda token: client.snapshot_page(owner, 0, token, source), client.snapshots)
        return listing.page(page, _converter)

    def _named_before(self, request: SnapshotRequest) -> list[Ec2Snapshot]:
        """Return the snapshots of this name as `_named` does, also those that another process created just before.

        Raises Unavailable at the deadline.
        """
        pause, deadline = self._cache.config.poll_seconds, self._cache.wait_deadline(request.deadline)
        while True:
            left = self._window.left()
            found = self._named(request.name)
            if found or left <= 0:
                return found
            if time.monotonic() + min(pause, left) > deadline:
                raise Unavailable(
                    f"snapshot {request.name!r} may have been created by another process just before this one took "
                    f"over, and EC2 does not show it yet; try again: it is created in {left:.0f} seconds if EC2 still "
                    "does not show it then"
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _named(self, name: str) -> list[Ec2Snapshot]:
        """Return the snapshots of this name, failed ones too, the oldest first.

        Raises Unavailable while EC2 may not show a recent one.
        """
        found = self._shown(name)
        until, known = self._recent.get(name, (0.0, ""))
        if not found and time.monotonic() < until:
            raise Unavailable(f"snapshot {name!r} {known} a moment ago, and EC2 does not show it yet; try again")
        return found

    def _shown(self, name: str) -> list[Ec2Snapshot]:
        """Return what EC2 shows under this name, without what this process has deleted."""
        found = self._cache.snapshots_by_name.get(leaf(name), self._cache.wait_deadline(None)) or []
        return [one for one in found if not self._cache.was_deleted(one.id)]

    def _refuse_unknown_zones(self, zones: tuple[str, ...]) -> None:
        """Raise InvalidArgument for zones that do not exist, before a snapshot is created."""
        if zones and (unknown := sorted(set(zones) - set(self._cache.region_zones()))):
            raise InvalidArgument(
                f"parameters: 'fastSnapshotRestoreAvailabilityZones': {', '.join(unknown)} is not in the region, whose "
                f"zones are {', '.join(self._cache.region_zones())}; choose among them"
            )

    def _set_options(self, snapshot: Ec2Snapshot, parameters: SnapshotParameters) -> None:
        """Enable fast restore of a snapshot that was just created, and lock it. After a final refusal it is deleted.

        The lock comes last: a locked snapshot could not be deleted.
        """
        client = self._cache.client
        try:
            if parameters.fast_zones:
                client.enable_fast_restore(snapshot.id, parameters.fast_zones)
            if parameters.lock:
                snapshot_locks.lock_new(client, snapshot.id, parameters.lock)
        except (Unavailable, Timeout):
            raise  # a retry finds the snapshot and does this then
        except StorageError as error:
            try:
                self._delete(snapshot.id)
            except StorageError as second:
                raise Unavailable(
                    f"snapshot {snapshot.id!r} did not get what its class asks for ({error}), and could not be "
                    f"deleted either: {second}; try again"
                ) from error
            raise

    def _ensure_options(self, snapshot: Ec2Snapshot, parameters: SnapshotParameters) -> None:
        """Do the same for a snapshot whose id may have been reported: it stays, whatever EC2 answers."""
        client, what = self._cache.client, "fast restore could not be enabled"
        try:
            if parameters.fast_zones:
                client.enable_fast_restore(snapshot.id, parameters.fast_zones)
            what = "lock could not be set"
            if parameters.lock:
                snapshot_locks.lock_existing(client, snapshot.id, parameters.lock)
        except StorageError as error:
            raise Unavailable(f"snapshot {snapshot.id!r} exists, but its {what}: {error}; try again") from error


def _created_as(id: str) -> str:
    return f"was created as {id!r}"


def _failed(name: str, snapshot: Ec2Snapshot) -> FailedPrecondition:
    return FailedPrecondition(
        f"snapshot {name!r} was created as {snapshot.id!r} and has failed ({snapshot.message or 'no reason given'}): "
        "nothing can be restored from it; delete the VolumeSnapshot and create another one (if EC2 still has "
        f"{snapshot.id!r} then, delete it there)"
    )


def _not_failed(found: list[Ec2Snapshot]) -> list[Ec2Snapshot]:
    return [one for one in found if one.state != "error"]


def _converter(found: dict[str, Ec2Snapshot]) -> Callable[[str], Snapshot | None]:
    """Return what converts a snapshot of these by its id; None leaves it out."""

    def convert(handle: str) -> Snapshot | None:
        snapshot = found.get(handle)
        if snapshot is None or snapshot.state == "error" or not labels.read_stamp(snapshot.tags):
            return None
        return to_snapshot(snapshot)

    return convert


def to_snapshot(snapshot: Ec2Snapshot) -> Snapshot:
    """Return a snapshot of this instance as the contract has it. Raises NotFound for one without a stamp."""
    stamp = labels.read_stamp(snapshot.tags)
    if stamp is None:
        raise NotFound(f"snapshot {snapshot.id!r} does not belong to this driver: it has no complete stamp")
    return Snapshot(
        handle=snapshot.id,
        source=labels.snapshot_source(snapshot.tags) or snapshot.volume,
        size=snapshot.size * GIB,
        created=snapshot.created,
        stamp=stamp,
        ready=snapshot.state == "completed",
    )
