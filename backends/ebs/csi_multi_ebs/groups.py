"""Group snapshots: snapshots of the volumes of one instance, at one point in time, by one call of CreateSnapshots.

EC2 knows no groups: its call makes snapshots with the same tags and the same start time. The tags name the group (a
handle that is new for every call), hold its stamp, and say of how many and which volumes it is, so that a set that is
not shown completely is told from one that is. Then each member gets the list of all: so a deletion that was interrupted
is finished by the ids, although EC2 shows a part of the group only. CreateSnapshots has no client token, so before it
the name is looked up (named_snapshots.py).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    GroupSnapshot,
    GroupSnapshotRequest,
    NotFound,
    StorageError,
    Timeout,
    Unavailable,
    missing,
)

from . import group_sources, labels, snapshot_locks, snapshot_options
from .caches import SingleUseCache
from .config import GroupSnapshotParameters
from .ec2_cache import LONGEST_PAUSE, Ec2Cache
from .named_snapshots import NamedSnapshots
from .resources import GROUP_ID, Ec2Snapshot
from .snapshots import FOUND_TTL, MAX_FOUND, to_snapshot

log = logging.getLogger(__name__)

COPIED_VOLUME = "vol-ffffffff"  # what EC2 shows as the volume of a copied snapshot


@dataclass(frozen=True, slots=True)
class Members:
    """The snapshots of one group that EC2 shows."""

    handle: str
    snapshots: tuple[Ec2Snapshot, ...]

    @property
    def wanted(self) -> int:
        """How many there are, as the tags say."""
        count = self.snapshots[0].tags.get(labels.GROUP_MEMBERS, "").partition(":")[0]
        return int(count) if count.isdigit() else 0

    @property
    def complete(self) -> bool:
        volumes = [one.volume for one in self.snapshots]
        return self.snapshots[0].tags.get(labels.GROUP_MEMBERS) == labels.members_tag(volumes)

    @property
    def too_many(self) -> bool:
        """Whether it has a volume that was not asked for, so that it was never returned to anybody."""
        return len(self.snapshots) >= self.wanted > 0 and not self.complete

    @property
    def failed(self) -> list[Ec2Snapshot]:
        return [one for one in self.snapshots if one.state == "error"]

    @property
    def listed(self) -> dict[str, str]:
        """All members, also those that EC2 does not show, and their volumes; empty before they were listed."""
        return next((found for one in self.snapshots if (found := labels.read_list(one.tags))), {})

    @property
    def ids(self) -> list[str]:
        return sorted({one.id for one in self.snapshots} | self.listed.keys())


class GroupManager:
    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._names = NamedSnapshots(cache, "group snapshot", cache.groups_by_name)
        self._found: SingleUseCache[Members] = SingleUseCache(FOUND_TTL, MAX_FOUND)  # by name, for `find`
        self._unwanted: set[str] = set()  # handles that were never reported, of what is to be deleted
        self._hidden: dict[str, float] = {}  # by handle: since when not all members are shown, time.monotonic()

    def create(self, request: GroupSnapshotRequest) -> Members:
        """Create all snapshots or none. A group of which a member fails later is never replaced under its name.

        Raises AlreadyExists, NotFound, InvalidArgument, ResourceExhausted, FailedPrecondition for volumes that EC2
        cannot cut together, and for a failed group.
        """
        cache, name = self._cache, request.stamp.name
        parameters = request.parameters or GroupSnapshotParameters()
        snapshot_options.refuse_useless(cache, parameters)
        self._refuse_taken(name, parameters, self._groups(self._names.named_before(name, request.deadline)))
        made = self._create(request, parameters)
        if not made.complete or made.failed:
            self._discard(made)
            raise Unavailable(
                f"EC2 did not make snapshots of exactly the volumes of group snapshot {name!r}: volumes were attached "
                "or detached at that moment, or a snapshot failed; try again"
            )
        self._refuse_second(name, made)
        self._list(made)
        snapshot_options.set_options(cache, made.ids, parameters, lambda: self._delete(made))
        self._names.reported(name)
        return made

    def _refuse_taken(self, name: str, parameters: GroupSnapshotParameters, groups: list[Members]) -> None:
        """Raise what a request under a name gets that EC2 shows already."""
        for group in groups:
            if group.too_many or group.handle in self._unwanted:
                self._discard(group)
        kept = [one for one in groups if not one.too_many and one.handle not in self._unwanted]
        if hidden := [one for one in kept if not one.complete]:
            raise Unavailable(
                f"EC2 shows {len(hidden[0].snapshots)} of {hidden[0].wanted} members of group snapshot {name!r} "
                f"({', '.join(hidden[0].ids)}); try again. If that lasts, members were deleted one by one: delete the "
                "VolumeGroupSnapshot, or the others in EC2"
            )
        if not kept:
            return
        first = kept[0]
        if first.failed:
            raise _failed(name, first.failed[0])  # its handle may have been reported, so no other replaces it
        self._delete_second(name, kept)
        self._ensure_listed(first)
        snapshot_options.ensure_options(self._cache, first.ids, parameters)
        self._found.put(name, first)
        raise AlreadyExists(f"group snapshot {name!r} already exists")

    def _create(self, request: GroupSnapshotRequest, parameters: GroupSnapshotParameters) -> Members:
        """Call EC2, and remember that it may not show the snapshots at once, whatever it answers."""
        cache, name, handle = self._cache, request.stamp.name, f"sgrp-{os.urandom(9).hex()[:17]}"
        tags = labels.group_tags(request, handle, cache.setting, cache.config)
        source = group_sources.find(cache, request.sources, parameters.outpost_arn)
        try:
            found = group_sources.cut(cache, source, tags, f"group snapshot {name}", parameters.outpost_arn)
        except (Unavailable, Timeout) as error:
            self._names.unclear(name, error)
            raise
        if not found:
            raise Unavailable(f"EC2 made no snapshots for group snapshot {name!r}; try again")
        self._names.created(name, handle)
        return Members(handle, tuple(replace(one, tags=one.tags or tags) for one in found))

    def _refuse_second(self, name: str, made: Members) -> None:
        """Raise AlreadyExists when another process created one before: the oldest stays, for all callers."""
        groups = [one for one in self._groups(self._names.shown(name)) if one.complete and not one.failed]
        if groups and groups[0].handle != made.handle and _age(groups[0]) < _age(made):
            self._discard(made)
            raise AlreadyExists(f"group snapshot {name!r} already exists as {groups[0].handle!r}")

    def _delete_second(self, name: str, groups: list[Members]) -> None:
        """Delete what an earlier request created after another process had, and could not compare then."""
        own = self._names.unreported(name)
        for group in groups:
            if group.handle == own:
                if group is not groups[0]:
                    self._discard(group)
                self._names.reported(name)

    def find(self, name: str) -> Members:
        """Return the group of this requested name. Raises NotFound.

        That is the one for which `create` raised AlreadyExists a moment ago, without another lookup.
        """
        if just_found := self._found.take(name):
            return just_found
        groups = [one for one in self._groups(self._names.named(name)) if not one.too_many]
        if any(not one.complete for one in groups):
            raise Unavailable(f"EC2 does not show all members of group snapshot {name!r}; try again")
        if good := [one for one in groups if not one.failed]:
            return good[0]
        raise missing("group snapshot", name)

    def get(self, handle: str) -> Members:
        """Return the group. Raises NotFound.

        Lookups may be late, so it is looked for until all members are shown or listed, for `consistency_seconds` since
        that was not so first.
        """
        pause = self._cache.config.poll_seconds
        while True:
            group = self._shown(handle)
            if group and (group.complete or group.listed):
                self._hidden.pop(handle, None)
                return group
            since = self._hidden.setdefault(handle, now := time.monotonic())
            if now - since >= self._cache.config.consistency_seconds:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        if group is None:
            self._hidden.pop(handle, None)
            raise missing("group snapshot", handle)
        return group

    def _shown(self, handle: str) -> Members | None:
        if not GROUP_ID.fullmatch(handle):
            raise missing("group snapshot", handle)
        found = self._cache.groups.get(handle, self._cache.wait_deadline(None)) or []
        groups = self._groups([one for one in found if not self._cache.was_deleted(one.id)])
        return groups[0] if groups else None

    def delete(self, handle: str) -> None:
        """Delete all members. Raises NotFound, InUse; FailedPrecondition while one is locked, and nothing is deleted.

        A deletion that was interrupted is finished by the next one: before it all members are listed on each.
        """
        group = self.get(handle)
        self._ensure_listed(group)
        with suppress(NotFound):  # another process deletes them now
            locks = self._cache.client.snapshot_locks([one.id for one in group.snapshots])
            for id, lock in locks.items():
                snapshot_locks.refuse_while_locked(id, lock)
        self._delete(group)

    def _discard(self, group: Members) -> None:
        """Delete a group whose handle was never reported. Raises Unavailable, so that the request is repeated."""
        self._unwanted.add(group.handle)
        try:
            self._delete(group)
        except StorageError as error:
            raise Unavailable(
                f"{snapshot_options.named(group.ids)} could not be deleted: {error}; try again"
            ) from error

    def _list(self, group: Members) -> None:
        """List the members on each. After a final refusal they are deleted: their handle was never reported."""
        try:
            self._ensure_listed(group)
        except (Unavailable, Timeout):
            raise
        except StorageError:
            self._discard(group)
            raise

    def _ensure_listed(self, group: Members) -> None:
        if group.listed or not group.complete:
            return
        tags = labels.list_tags({one.id: one.volume for one in group.snapshots})
        try:
            self._cache.client.tag(group.ids, tags)
        except NotFound as error:
            raise Unavailable(
                f"EC2 does not know all members of group snapshot {group.handle!r} yet: {error}; try again"
            ) from error

    def _delete(self, group: Members) -> None:
        """Delete the members. One that cannot be deleted does not keep the others, and its error is raised last."""
        failure: StorageError | None = None
        for id in group.ids:
            try:
                with suppress(NotFound):
                    self._cache.client.delete_snapshot(id)
                self._cache.remember_deleted(id)
            except StorageError as error:
                failure = failure or error
        if failure:
            raise failure
        self._names.deleted(group.handle)

    def _groups(self, found: Sequence[Ec2Snapshot]) -> list[Members]:
        """Return the groups of these members, the oldest first, without copies that a person made of members."""
        by_handle: dict[str, list[Ec2Snapshot]] = {}
        for one in found:
            if not one.volume.startswith(COPIED_VOLUME) and labels.read_stamp(one.tags):
                by_handle.setdefault(one.tags[labels.GROUP], []).append(one)
        groups = [Members(handle, tuple(members)) for handle, members in by_handle.items()]
        return sorted(groups, key=_age)


def _age(group: Members) -> tuple[object, str]:
    return min(one.created for one in group.snapshots), group.handle


def _failed(name: str, snapshot: Ec2Snapshot) -> FailedPrecondition:
    return FailedPrecondition(
        f"a member of group snapshot {name!r}, {snapshot.id!r}, has failed ({snapshot.message or 'no reason given'}): "
        "delete the VolumeGroupSnapshot and create another one"
    )


def to_group(group: Members) -> GroupSnapshot:
    """Return the group as the contract has it."""
    stamp = labels.read_stamp(group.snapshots[0].tags)
    assert stamp, "members without a stamp are left out"
    shown = {one.id: to_snapshot(one) for one in group.snapshots}
    first = next(iter(shown.values()))
    hidden = {id: replace(first, handle=id, source=volume, size=0, ready=False) for id, volume in group.listed.items()}
    members = tuple(one for _, one in sorted({**hidden, **shown}.items()))
    return GroupSnapshot(
        handle=group.handle, snapshots=members, created=min(one.created for one in members), stamp=stamp
    )
