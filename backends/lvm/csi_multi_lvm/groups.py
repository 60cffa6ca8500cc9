"""Group snapshots: create, find, get, delete. All members are of one moment, and all or none are shown.

The members are snapshots with tags of their own (group_members.py), so there is nothing else that holds a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    GroupSnapshot,
    GroupSnapshotRequest,
    InUse,
    Setting,
    StorageError,
    missing,
)

from . import labels
from .errors import CommandRefused
from .group_cut import Cut, GroupCut
from .operation import InstanceParts, Operation
from .report import LogicalVolume, Report
from .snapshots import SnapshotManager, source_tags

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A member that is to be created."""

    name: str
    origin: LogicalVolume
    size: int
    tags: list[str]


class GroupManager(Operation):
    def __init__(self, instance: InstanceParts, snapshots: SnapshotManager, setting: Setting) -> None:
        super().__init__(instance)
        self._snapshots = snapshots
        self._cut = GroupCut(setting.host, self._client, self._activation, self._config.volume_group)

    def create(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Create all snapshots or none. Raises AlreadyExists, NotFound, ResourceExhausted, FailedPrecondition."""
        sources = [self._owned_volumes.leaf(one) for one in request.sources]
        group = self._owned_snapshots.leaf_for(request.stamp.name)
        report = self._reports.fresh()
        self._refuse_taken(group, report)
        origins = [
            self._owned_volumes.require(one, report.volumes.get(self._owned_volumes.name(one))) for one in sources
        ]
        self._refuse_unsuitable(origins)
        members = [self._member(group, number, one, request) for number, one in enumerate(origins)]
        try:
            self._build(group, members, request.parameters)
        except StorageError as error:
            self._give_up(group, error)
        self._reports.clear()
        return self.get(self._owned_snapshots.handle_of(group))

    def _refuse_taken(self, group: str, report: Report) -> None:
        """Raise AlreadyExists for a group that exists, or another owner's. An incomplete one is removed."""
        name = self._first(group)
        first = report.volumes.get(name)
        if first and (
            not self._owned_snapshots.owns(first) or self._owned_snapshots.is_complete(group, report.volumes)
        ):
            raise AlreadyExists(f"group snapshot {group!r} already exists, with logical volume {name}")
        if members := self._owned_snapshots.members(group, report.volumes):
            self._remove(group, members)

    def _refuse_unsuitable(self, origins: Sequence[LogicalVolume]) -> None:
        """Raise FailedPrecondition for volumes that cannot be cut together."""
        pool = self._config.thin_pool
        for one in origins:
            if one.thin and one.pool != pool:
                raise FailedPrecondition(
                    f"logical volume {one.name} is in thin pool {one.pool}, and this instance is configured for "
                    f"{pool or 'none'}; set thin_pool to the pool of all volumes of the group"
                )

    def _member(self, group: str, number: int, origin: LogicalVolume, request: GroupSnapshotRequest) -> _Member:
        size = self._snapshots.current_size(origin)
        tags = [
            *labels.stamp_tags(request.stamp),
            *source_tags(self._owned_volumes.handle(origin), size),
            f"{labels.GROUP_LEAF}{group}",
            *([] if number else [labels.PARTIAL]),
            *self._config.tags,
        ]
        leaf = self._owned_snapshots.member_leaf(group, number)
        return _Member(name=self._owned_snapshots.name(leaf), origin=origin, size=size, tags=tags)

    def _build(self, group: str, members: Sequence[_Member], parameters: object) -> None:
        """Create the members, which are hidden, cut them, and show them all at once."""
        for one in members:
            options, space_tags = self._snapshots.space(self._reports.get(), one.origin, one.size, parameters)
            self._activation.resume(one.origin.name, one.origin.pool)
            self._client.create_snapshot(one.name, one.origin.name, options, [*one.tags, *space_tags])
            self._reports.add(replace(one.origin, name=one.name, tags=frozenset(one.tags)), 0)
        cuts = [Cut(member=one.name, origin=one.origin, size=one.size) for one in members]
        created = [f"{labels.CREATED_AT}{self._cut.cut(self._config.thin_pool, cuts):.6f}"]
        first = self._first(group)
        self._client.tag_all(f'{self._owned_snapshots.condition(group)} && lv_name!="{first}"', created)
        condition = f'lv_tags={{"{labels.PARTIAL}"}} && lv_tags!={{"{labels.REMOVING}"}}'
        if not self._client.change_tags(first, add=created, remove=[labels.PARTIAL], condition=condition):
            raise Busy(f"another process removed group snapshot {group!r} while it was created; try again")

    def _give_up(self, group: str, error: StorageError) -> None:
        """Remove what there is of a group, and raise the error of its creation; Busy if that cannot be done yet."""
        self._reports.clear()
        try:
            self._remove(group, [])
        except StorageError as second:
            raise Busy(
                f"group snapshot {group!r} is incomplete, and cannot be removed yet: {second}; {error}"
            ) from error
        raise error.contract_error() if isinstance(error, CommandRefused) else error

    # Find

    def find(self, name: str) -> GroupSnapshot:
        """Return the group with a requested name. Raises NotFound, FailedPrecondition."""
        return self.get(self._owned_snapshots.handle_of(self._owned_snapshots.leaf_for(name)))

    def get(self, handle: str) -> GroupSnapshot:
        """Return a group. Raises NotFound, FailedPrecondition for another owner's."""
        group, report = self._owned_snapshots.leaf(handle), self._client.report()
        self._require(handle, group, report)
        if not self._owned_snapshots.is_complete(group, report.volumes):
            raise missing("group snapshot", handle)
        members = self._owned_snapshots.members(group, report.volumes)
        snapshots = tuple(self._snapshots.in_report(report, one) for one in members)
        stamp = self._owned_snapshots.stamp(members[0])
        return GroupSnapshot(handle=handle, snapshots=snapshots, created=snapshots[0].created, stamp=stamp)

    def _require(self, handle: str, group: str, report: Report) -> LogicalVolume:
        """Return the first member. Raises NotFound, FailedPrecondition for another owner's."""
        first = report.volumes.get(self._first(group))
        if first is None:
            raise missing("group snapshot", handle)
        if not self._owned_snapshots.owns(first):
            raise self._owned_snapshots.not_owned(first)
        return first

    def _first(self, group: str) -> str:
        return self._owned_snapshots.name(self._owned_snapshots.member_leaf(group, 0))

    # Delete

    def delete(self, handle: str) -> None:
        """Delete a group with all members. Raises NotFound, InUse while one is being copied, FailedPrecondition.

        A deletion that was interrupted is finished.
        """
        group, report = self._owned_snapshots.leaf(handle), self._client.report()
        self._require(handle, group, report)
        if self._owned_snapshots.is_complete(group, report.volumes):
            for one in self._owned_snapshots.members(group, report.volumes):
                if one.open:
                    raise InUse(
                        f"snapshot {one.name} is in use; wait until the volumes that are restored from it are complete"
                    )
        self._remove(group, self._owned_snapshots.members(group, report.volumes))

    def _remove(self, group: str, members: Sequence[LogicalVolume]) -> None:
        """Remove all that there is of a group, and resume what was suspended for these members.

        Raises Busy while another process uses it, Unavailable.
        """
        seen = time.monotonic()
        for one in members:
            self._activation.resume(one.origin, one.pool, seen=seen)
        condition, first = self._owned_snapshots.condition(group), self._first(group)
        try:
            self._client.tag_all(f'{condition} && lv_name="{first}"', [labels.REMOVING])
            self._client.remove_all(f'{condition} && lv_name!="{first}"')
            self._client.remove_all(f'{condition} && lv_name="{first}"')
        except CommandRefused as error:
            raise Busy(f"group snapshot {group!r} cannot be removed completely yet: {error}; try again") from None
        finally:
            self._reports.clear()
        if left := self._owned_snapshots.members(group, self._client.report().volumes):
            raise Busy(
                f"members of group snapshot {group!r} are left: {', '.join(one.name for one in left)}; try again"
            )

    def remove_leftovers(self) -> None:
        """Remove what no request will finish: groups that are not complete, and members without their group."""
        report = self._client.report()
        for group in sorted(self._owned_snapshots.groups(report)):
            if not self._owned_snapshots.is_complete(group, report.volumes):
                try:
                    self._remove(group, self._owned_snapshots.members(group, report.volumes))
                except StorageError as error:
                    log.warning("leftover group snapshot %s cannot be removed yet: %s", group, error)
