"""Snapshots: create one per name, although EC2 has no client tokens for them, find, delete and list.

Before a snapshot is created its name is looked up (named_snapshots.py), in one call for all lookups of that moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

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
)

from . import labels, outposts, snapshot_locks, snapshot_options
from .caches import SingleUseCache
from .config import SnapshotParameters
from .ec2_cache import Ec2Cache
from .listing import Listing
from .named_snapshots import NamedSnapshots
from .resources import GIB, VOLUME_ID, Ec2Snapshot

log = logging.getLogger(__name__)

FOUND_TTL = 1.0  # seconds from the AlreadyExists of a request until it asks which snapshot that is
MAX_FOUND = 1000  # snapshots that are remembered for that


class SnapshotManager:
    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._names = NamedSnapshots(cache, "snapshot", cache.snapshots_by_name)
        self._found: SingleUseCache[Ec2Snapshot] = SingleUseCache(FOUND_TTL, MAX_FOUND)  # by name, for `find`
        client, owner = cache.client, cache.owner
        self._listing = Listing(lambda token: client.snapshot_page(owner, 0, token), client.snapshots)

    def create(self, request: SnapshotRequest) -> Ec2Snapshot:
        """Create a snapshot, which is usable later. One that fails later is never replaced under its name.

        Raises AlreadyExists, NotFound, InvalidArgument, ResourceExhausted, and FailedPrecondition for a failed one.
        """
        cache, parameters = self._cache, request.parameters or SnapshotParameters()
        snapshot_options.refuse_useless(cache, parameters)
        found = self._names.named_before(request.name, request.deadline)
        if good := _not_failed(found):
            self._delete_second(request.name, good)
            snapshot_options.ensure_options(cache, [good[0].id], parameters)
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
        snapshot_options.set_options(cache, [snapshot.id], parameters, lambda: self._delete(snapshot.id))
        self._names.reported(request.name)
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
            self._names.unclear(request.name, error)
            raise
        cache.note_owner([snapshot])
        self._names.created(request.name, snapshot.id)
        return snapshot

    def _refuse_second(self, name: str, snapshot: Ec2Snapshot) -> None:
        """Raise AlreadyExists when another process created one before: the oldest stays, for all callers."""
        good = _not_failed(self._names.shown(name))  # where it fails, the retry does this (_delete_second)
        if good and good[0].id != snapshot.id and (good[0].created, good[0].id) < (snapshot.created, snapshot.id):
            self._delete(snapshot.id)
            raise AlreadyExists(f"snapshot {name!r} already exists as {good[0].id!r}")

    def _delete_second(self, name: str, good: list[Ec2Snapshot]) -> None:
        """Delete what an earlier request created after another process had, and could not compare then."""
        own = self._names.unreported(name)
        if own in [one.id for one in good[1:]]:
            with suppress(NotFound):
                self._delete(own)
        if own in [one.id for one in good]:
            self._names.reported(name)

    def find(self, name: str) -> Ec2Snapshot:
        """Return the snapshot of this requested name. Raises NotFound.

        That is the one for which `create` raised AlreadyExists a moment ago, without another lookup.
        """
        if just_found := self._found.take(name):
            return just_found
        if good := _not_failed(self._names.named(name)):
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
        known = self._cache.is_own(handle) or self._shown(handle)
        try:
            self._delete(handle)
        except StorageError as error:
            snapshot_locks.refuse_locked(self._cache.client, handle, error)
            raise
        if not known:
            log.warning(labels.NOT_CHECKED, "snapshot", handle)

    def _shown(self, handle: str) -> Ec2Snapshot | None:
        """Return the snapshot, None for one that EC2 does not show. Raises InvalidArgument for a member of a group."""
        found = self._cache.shown_snapshot(handle)
        if found and (group := found.tags.get(labels.GROUP)):
            raise InvalidArgument(
                f"snapshot {handle!r} is a member of group snapshot {group!r}, and is deleted with it only; delete the "
                "VolumeGroupSnapshot"
            )
        return found

    def _delete(self, id: str) -> None:
        """Delete the snapshot, and no longer expect EC2 to show it."""
        self._cache.client.delete_snapshot(id)
        self._cache.remember_deleted(id)
        self._names.deleted(id)

    def list_page(self, page: PageRequest, source: str | None) -> Page[Snapshot]:
        """Return one page of this instance's snapshots, of one volume if given. Raises InvalidToken."""
        if source is None:
            return self._listing.page(page, _converter)
        if not VOLUME_ID.fullmatch(source):
            return Page(items=())
        client, owner = self._cache.client, self._cache.owner
        listing = Listing(lambda token: client.snapshot_page(owner, 0, token, source), client.snapshots)
        return listing.page(page, _converter)


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
    group = snapshot.tags.get(labels.GROUP, "")
    if group:  # the stamp is that of the group
        stamp = replace(stamp, name=f"{stamp.name}-{snapshot.volume}")
    return Snapshot(
        handle=snapshot.id,
        source=labels.snapshot_source(snapshot.tags) or snapshot.volume,
        size=snapshot.size * GIB,
        created=snapshot.created,
        stamp=stamp,
        ready=snapshot.state == "completed",
        group=group,
    )
