"""Snapshots: create, find, list and delete, and extend thick ones before they overflow.

Thin snapshots are independent of their volume. Thick ones store what changes in their volume in space of their own;
they need the volume, and would be removed with it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    Page,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    ids,
)

from . import labels
from . import layout as layouts
from .config import Parameters, SnapshotParameters
from .errors import CommandRefused
from .group_members import number_of
from .listing import incomplete
from .operation import Operation
from .report import LogicalVolume, Report

log = logging.getLogger(__name__)

THIN_OPTIONS = ("-p", "r")
FULL_SIZE = ("-l", "100%ORIGIN")  # a thick snapshot of this size cannot overflow


class SnapshotManager(Operation):
    def create(self, request: SnapshotRequest) -> Snapshot:
        """Create a snapshot of a volume. Raises AlreadyExists, NotFound for the source, ResourceExhausted."""
        source = self._owned_volumes.leaf(request.source)
        name = self._owned_snapshots.name(self._owned_snapshots.leaf_for(request.name))
        report = self._reports.get()
        origin = self._owned_volumes.get_cached(report, source)
        size = self.current_size(origin)
        options, space_tags = self.space(report, origin, size, request.parameters)
        facts = [*source_tags(request.source, size), f"{labels.CREATED_AT}{time.time():.6f}"]
        tags = [*labels.stamp_tags(request.stamp), *facts, *space_tags, *self._config.tags]
        self._activation.resume(origin.name, origin.pool)  # a snapshot of a suspended thin volume damages the pool
        try:
            self._client.create_snapshot(name, origin.name, options, tags)
        except CommandRefused as error:
            self._reports.clear()
            self._refuse_existing(name)
            self._owned_volumes.get(source)  # raises NotFound if it was deleted since the cached report
            raise error.contract_error() from None
        except BaseException:
            self._reports.clear()
            raise
        created = LogicalVolume(
            name=name,
            uuid="",
            size=size,
            tags=frozenset(tags),
            layout=origin.layout if origin.thin else frozenset({"linear"}),
            role=frozenset() if origin.thin else frozenset({"thicksnapshot"}),
            origin=origin.name,
            pool=origin.pool,
        )
        if origin.thin:
            self._reports.add(created, 0)
        else:
            self._reports.clear()  # lvm decides how much space it takes
        return self.to_snapshot(created)

    def find(self, name: str) -> Snapshot:
        """Return the snapshot with a requested name. Raises NotFound, FailedPrecondition."""
        return self._get(self._owned_snapshots.leaf_for(name))

    def get(self, handle: str) -> Snapshot:
        """Return a snapshot. Raises NotFound, FailedPrecondition."""
        return self._get(self._owned_snapshots.leaf(handle))

    def _get(self, leaf: str) -> Snapshot:
        found = self._owned_snapshots.get(leaf)
        source = self._source_name(found)
        return self.to_snapshot(found, earlier=source != found.origin and source in self._client.find(source))

    def list_page(self, page: PageRequest, source: str | None) -> Page[Snapshot]:
        """Return one page of this instance's snapshots, of one volume if given."""
        report = self._client.report()

        def convert(found: LogicalVolume) -> Snapshot | None:
            snapshot = self.in_report(report, found)
            return snapshot if source in (None, snapshot.source) else None

        return self._owned_snapshots.page(report, page, convert)

    def in_report(self, report: Report, found: LogicalVolume) -> Snapshot:
        """Return a snapshot that a report has, as the contract describes it. Raises FailedPrecondition."""
        name = self._source_name(found)
        return self.to_snapshot(found, earlier=name != found.origin and name in report.volumes)

    def _source_name(self, found: LogicalVolume) -> str:
        """Return the name of the volume that a snapshot was created of."""
        return self._owned_volumes.prefix + labels.source_handle(found.name, found.tags).rpartition("/")[2]

    def to_snapshot(self, found: LogicalVolume, *, earlier: bool = False) -> Snapshot:
        """Return a snapshot as the contract describes it.

        `earlier`: another volume has the name of the source now. LVM knows: it takes the origin from a thin snapshot
        when it removes the origin.
        """
        source = labels.source_handle(found.name, found.tags)
        created = datetime.fromtimestamp(labels.created_at(found.name, found.tags), UTC)
        stamp, group = self._owned_snapshots.stamp(found), labels.value(found.tags, labels.GROUP_LEAF)
        return Snapshot(
            handle=self._owned_snapshots.handle(found),
            source=ids.earlier(source, "") if earlier else source,
            size=labels.byte_count(found.name, found.tags, labels.SOURCE_SIZE) or found.size,
            created=created,
            stamp=replace(stamp, name=f"{stamp.name}-{number_of(found.name)}") if group else stamp,
            ready=not overflowed(found),
            group=self._owned_snapshots.handle_of(group) if group else "",
        )

    def _refuse_existing(self, name: str) -> None:
        """Raise AlreadyExists for a snapshot that exists, Busy after removing an incomplete one."""
        found = self._client.find(name).get(name)
        if found and self._owned_snapshots.owns(found) and incomplete(found):
            self._client.remove(name, self._condition(), active=True)
            raise Busy(f"an incomplete snapshot {name}, left by a killed command, was removed; try again")
        if found:
            raise AlreadyExists(f"logical volume {name} already exists")

    def _condition(self) -> str:
        """Return the condition for a removal: this instance owns it, and no snapshots would be removed with it."""
        return f'lv_tags={{"{self._owned_snapshots.owner}"}} && lv_role!={{"thickorigin"}}'

    def delete(self, handle: str) -> None:
        """Delete a snapshot. Raises NotFound, InUse while it is being copied, InvalidArgument for a group's member."""
        leaf = self._owned_snapshots.leaf(handle)
        if labels.first_member(leaf):
            self._refuse_member(handle, leaf)
        name = self._owned_snapshots.name(leaf)
        try:
            removed = self._client.remove(name, self._condition(), active=True)  # lvm refuses if it is open
        except CommandRefused as error:
            self._reports.clear()
            if name in self._client.find(name):
                raise error.contract_error() from None
            removed = False
        except BaseException:
            self._reports.clear()
            raise
        self._reports.remove(name)
        if not removed:
            self._reports.clear()
            self._owned_snapshots.get(leaf)
            raise InUse(f"snapshot {name} is in use; wait until the volumes that are restored from it are complete")

    def _refuse_member(self, handle: str, leaf: str) -> None:
        """Raise InvalidArgument for a member of a group, NotFound."""
        group = labels.value(self._owned_snapshots.get(leaf).tags, labels.GROUP_LEAF)
        raise InvalidArgument(
            f"snapshot {handle!r} is a member of group snapshot {self._owned_snapshots.handle_of(group)!r} and is "
            "deleted with it only; delete the group"
        )

    def create_clone_source(self, name: str, source: LogicalVolume) -> LogicalVolume:
        """Create the temporary snapshot that a clone is copied from. Raises NotFound, ResourceExhausted."""
        self._reports.clear()
        size = self.current_size(source)
        options = THIN_OPTIONS if source.thin else FULL_SIZE
        thick = [] if source.thin else [labels.THICK_SNAPSHOT]
        facts = [f"{labels.SOURCE_SIZE}{size}", f"{labels.CREATED_AT}{time.time():.6f}"]
        self._activation.resume(source.name, source.pool)
        try:
            self._client.create_snapshot(name, source.name, options, [self._owned_volumes.owner, *facts, *thick])
        except CommandRefused as error:
            if source.name not in self._client.find(source.name):
                raise NotFound(f"logical volume {source.name} does not exist") from None
            raise error.contract_error() from None
        return self._client.get(name)

    def refuse_overflowed(self, snapshot: LogicalVolume) -> None:
        """Raise FailedPrecondition for a snapshot that has lost its data."""
        if overflowed(snapshot):
            raise FailedPrecondition(
                f"snapshot {snapshot.name} is invalid: its volume changed more than the snapshot had space for, and "
                "the snapshot's data is lost; delete it, and create new ones with a larger snapshotSize"
            )

    def admit_thin(self, report: Report, size: int) -> None:
        """Raise ResourceExhausted when so many bytes do not fit into the pool."""
        self._capacity.admit(report, layouts.requested(Parameters(type="thin"), self._config), size)

    def maintain(self, report: Report) -> None:
        """Extend thick snapshots that fill up, and tag overflowed ones: LVM does not report it while inactive."""
        for found in self._owned_snapshots.all(report):
            if found.invalid and labels.INVALID not in found.tags:
                log.error("snapshot %s overflowed and lost its data; delete it", found.name)
                self._client.change_tags(found.name, add=[labels.INVALID])
            try:
                threshold, percent = labels.auto_extend(found.name, found.tags)
            except FailedPrecondition as error:
                log.warning("snapshot %s is not extended and may overflow: %s", found.name, error)
                continue
            if percent and not overflowed(found) and (found.data_percent or 0) >= threshold:
                self._extend(report, found, percent)

    def _extend(self, report: Report, found: LogicalVolume, percent: int) -> None:
        origin = report.volumes[found.origin]
        size = min(found.size * (100 + percent) // 100, origin.size * 102 // 100 + 8 * report.group.extent_size)
        extents = -(-size // report.group.extent_size)
        if extents * report.group.extent_size <= found.size:
            return
        log.info("snapshot %s is %.0f %% full; extending it to %d extents", found.name, found.data_percent, extents)
        try:
            self._client.extend(found.name, extents)
        except CommandRefused as error:
            log.warning("snapshot %s cannot be extended and may overflow: %s", found.name, error)

    def space(
        self, report: Report, origin: LogicalVolume, size: int, parameters: object
    ) -> tuple[tuple[str, ...], list[str]]:
        """Return lvcreate's options for the snapshot's space, and the tags that describe it."""
        if origin.thin:
            self.admit_thin(report, size)
            return THIN_OPTIONS, []
        wanted = parameters if isinstance(parameters, SnapshotParameters) else SnapshotParameters()
        auto_extend = [f"{labels.AUTO_EXTEND}{wanted.auto_extend_threshold}:{wanted.auto_extend_percent}"]
        text = wanted.snapshot_size
        if text.endswith("%") and int(text[:-1]) >= 100:
            return FULL_SIZE, [labels.THICK_SNAPSHOT]
        options = ("-l", f"{text}ORIGIN") if text.endswith("%") else ("-L", f"{text}b")
        return options, [labels.THICK_SNAPSHOT, *(auto_extend if wanted.auto_extend_threshold < 100 else [])]

    def current_size(self, origin: LogicalVolume) -> int:
        """Return a volume's size: the kernel's if it is active, because it may have grown since the report."""
        active = self._activation.device(origin.name)
        return active.size if active else origin.size


def source_tags(source: str, size: int) -> list[str]:
    """Return the tags of a snapshot that say of what it is."""
    return [f"{labels.SOURCE_HANDLE}{labels.escape(source)}", f"{labels.SOURCE_SIZE}{size}"]


def overflowed(found: LogicalVolume) -> bool:
    """Return whether a thick snapshot has lost its data."""
    return found.invalid or labels.INVALID in found.tags
