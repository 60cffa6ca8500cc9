"""Volumes: create, find, list and delete, and remove what interrupted operations left.

An empty volume is created by one lvcreate with all its tags. Creations are admitted one after the other, so that
each is checked against what the group has left after the one before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    InUse,
    OutOfRange,
    Page,
    PageRequest,
    SizeRange,
    StorageError,
    Volume,
    VolumeRequest,
    not_ours_to_delete,
)

from . import capacity, labels, wiping
from . import layout as layouts
from .config import Parameters
from .errors import CommandRefused
from .labels import CLONE_SOURCE_PREFIX, SNAPSHOT_PREFIX, VOLUME_PREFIX, ZEROED_SPACE_PREFIX
from .layout import Layout
from .listing import incomplete
from .operation import InstanceParts, Operation
from .report import LogicalVolume, Report

log = logging.getLogger(__name__)

MAX_WAIT = 60.0  # seconds to wait for creations before this one
ABANDONED = 24 * 3600.0  # seconds after which no request retries an incomplete copy


class VolumeManager(Operation):
    def __init__(self, instance: InstanceParts) -> None:
        super().__init__(instance)
        self._admission = threading.Lock()

    # Create

    def create(self, request: VolumeRequest) -> LogicalVolume:
        """Create an empty volume. Raises AlreadyExists, InvalidArgument, OutOfRange, ResourceExhausted."""
        leaf = self._owned_volumes.leaf_for(request.name)
        layout = self.layout(request)
        with self.admission() as report:
            if self.listed(report, leaf):
                self.refuse_existing(leaf)
                report = self._reports.get()
            capacity.refuse_large_sectors(report, request.largest_sector)
            size = self.size(report, layout, request.size)
            state = wiping.initial_tags(layout.wipe, thin=layout.thin)
            return self.allocate(leaf, layout, size, report, [*self.tags(request, layout), *state])

    def allocate(self, leaf: str, layout: Layout, size: int, report: Report, tags: Sequence[str]) -> LogicalVolume:
        """Create a logical volume, within `admission`. Raises AlreadyExists, OutOfRange, ResourceExhausted."""
        self._capacity.admit(report, layout, size)
        extents = size // report.group.extent_size
        options: Iterable[str] = ("-l", str(extents), "-Zn", "-Wn", *layout.arguments())
        if layout.thin:
            options = ("-V", f"{size}b", "--thinpool", self._config.thin_pool, *layout.arguments())
        volume = LogicalVolume(
            name=self._owned_volumes.name(leaf),
            uuid="",
            size=size,
            tags=frozenset(tags),
            layout=frozenset({"thin", "sparse"} if layout.thin else {layout.type}),
            pool=self._config.thin_pool if layout.thin else "",
        )
        with self.refusals_of_creation(leaf):
            if layout.integrity:
                self._create_with_integrity(volume, list(options), size)
            else:
                self._client.create(volume.name, list(options), tags)
        self._reports.add(volume, 0 if layout.thin else layout.physical(extents, report.group.extent_size))
        return volume

    def _create_with_integrity(self, volume: LogicalVolume, options: Sequence[str], size: int) -> None:
        """Create a RAID volume, then add integrity. In between it is incomplete, and so not found."""
        incomplete_tag = f"{labels.INTENDED_SIZE}{size}"
        self._client.create(volume.name, options, {*volume.tags, incomplete_tag})
        self._client.add_integrity(volume.name)
        self._client.deactivate(volume.name)
        if incomplete_tag in volume.tags:  # a copy stays incomplete, and is only resumed if it has its integrity
            self._client.change_tags(volume.name, add=[f"{labels.BYTES_COPIED}0"])
        else:
            self._client.change_tags(volume.name, remove=[incomplete_tag])

    @contextmanager
    def admission(self) -> Iterator[Report]:
        """Let one creation at a time be checked and run. Raises Busy."""
        if not self._admission.acquire(timeout=MAX_WAIT):
            raise Busy(
                f"volume group {self._config.volume_group} was locked by another creation for {MAX_WAIT:g} s; try again"
            )
        try:
            yield self._reports.get()
        finally:
            self._admission.release()

    @contextmanager
    def refusals_of_creation(self, leaf: str) -> Iterator[None]:
        """Raise the contract's error when lvm refuses a creation. After any error the next report is a fresh one."""
        try:
            yield
        except CommandRefused as error:
            self._reports.clear()
            self.refuse_existing(leaf)
            raise error.contract_error() from None
        except BaseException:
            self._reports.clear()
            raise

    # What a creation needs

    def layout(self, request: VolumeRequest) -> Layout:
        """Return the requested layout. Raises InvalidArgument."""
        parameters = request.parameters if isinstance(request.parameters, Parameters) else Parameters()
        return layouts.requested(parameters, self._config)

    def tags(self, request: VolumeRequest, layout: Layout) -> list[str]:
        """Return the tags of a volume: owner and stamp, layout, and what people and their tools read."""
        layout_tags = [] if layout.thin else [labels.LAYOUT + layouts.to_tag(layout)]
        metadata = labels.metadata_tags(request.metadata)
        return [*labels.stamp_tags(request.stamp), *metadata, *layout_tags, *self._config.tags]

    def size(self, report: Report, layout: Layout, wanted: SizeRange, source: int = 0) -> int:
        """Choose a size. Raises OutOfRange, also when the requested size is smaller than the source's."""
        size = wanted.choose(
            granularity=report.group.extent_size * layout.data,
            minimum=self._config.min_size,
            maximum=self._config.max_size,
            default=source or self._config.default_size,
        )
        if size < source:
            raise OutOfRange(f"{size} bytes are fewer than the source's {source}; request at least {source} bytes")
        return size

    # Volumes that exist already, complete or not

    def listed(self, report: Report, leaf: str) -> bool:
        """Return whether the report has a volume of this name, complete or not."""
        return self._owned_volumes.name(leaf) in report.volumes or CLONE_SOURCE_PREFIX + leaf in report.volumes

    def refuse_existing(self, leaf: str) -> None:
        """Raise AlreadyExists if the volume exists. An incomplete one is removed."""
        for one in self.leftovers(leaf):
            self.remove_incomplete(one)

    def leftovers(self, leaf: str) -> list[LogicalVolume]:
        """Return what an earlier attempt left: an incomplete volume, and the snapshot that it is copied from.

        Raises AlreadyExists for a complete volume, or another owner's.
        """
        name, clone_source = self._owned_volumes.name(leaf), CLONE_SOURCE_PREFIX + leaf
        found = self._client.find(name, clone_source)
        if (volume := found.get(name)) and not (self._owned_volumes.owns(volume) and incomplete(volume)):
            if clone_source in found and self._owned_volumes.owner in found[clone_source].tags:
                self.remove_incomplete(found[clone_source])
            raise AlreadyExists(f"logical volume {name} already exists")
        return [found[one] for one in (name, clone_source) if one in found]

    def remove_incomplete(self, one: LogicalVolume) -> None:
        """Remove something incomplete. Raises Busy while another process works on it, FailedPrecondition."""
        if self._owned_volumes.owner not in one.tags:
            raise self._owned_volumes.not_owned(one)
        condition = f'lv_tags={{"{self._owned_volumes.owner}"}} && lv_role!={{"thickorigin"}}'
        try:
            if not one.thick_snapshot:
                self._activation.deactivate(one.name)
            self._client.remove(one.name, condition, active=one.thick_snapshot)
        except (CommandRefused, InUse, OSError) as error:
            raise Busy(
                f"logical volume {one.name}, left by an earlier attempt, cannot be removed yet: {error}; try again"
            ) from None
        finally:
            self._reports.clear()

    # Find

    def find(self, name: str) -> LogicalVolume:
        """Return the volume with a requested name. Raises NotFound, FailedPrecondition."""
        return self._owned_volumes.get(self._owned_volumes.leaf_for(name))

    def get(self, handle: str) -> LogicalVolume:
        """Return a volume. Raises NotFound, FailedPrecondition."""
        return self._owned_volumes.get(self._owned_volumes.leaf(handle))

    def list_page(self, page: PageRequest) -> Page[Volume]:
        """Return one page of this instance's volumes."""
        return self._owned_volumes.page(self._client.report(), page, self.to_volume)

    def to_volume(self, found: LogicalVolume) -> Volume:
        """Return a logical volume as the contract describes it."""
        handle, stamp = self._owned_volumes.handle(found), self._owned_volumes.stamp(found)
        return Volume(handle=handle, size=found.size, stamp=stamp)

    # Delete

    def delete(self, handle: str) -> None:
        """Delete a volume. Raises NotFound, InUse while it is open or has snapshots, FailedPrecondition.

        In the usual case this is one command. If it removes nothing, the reason is looked up.
        """
        leaf = self._owned_volumes.leaf(handle)
        if not self._remove(self._owned_volumes.name(leaf)):
            self._delete_leftover_or_refuse(leaf)

    def _remove(self, name: str) -> bool:
        """Remove a volume of this instance, unless it is active, or has thick snapshots; return whether it is gone."""
        owned = f'lv_tags={{"{self._owned_volumes.owner}"}} && lv_tags!={{"{labels.IMPORTED}"}}'
        condition = f'{owned} && lv_role!={{"thickorigin"}} && lv_active=""'
        try:
            if self._client.remove(name, condition):
                self._reports.remove(name)
                return True
        except CommandRefused as error:
            self._reports.clear()
            if name in self._client.find(name):
                raise error.contract_error() from None
        except BaseException:
            self._reports.clear()
            raise
        self._reports.clear()
        return False

    def _delete_leftover_or_refuse(self, leaf: str) -> None:
        """Raise why a volume was not deleted; delete it if it is incomplete, or active only to read its snapshot."""
        name = self._owned_volumes.name(leaf)
        report = self._client.report()
        found = report.volumes.get(name)
        if found and self._owned_volumes.owns(found) and incomplete(found):
            self.refuse_existing(leaf)
            return
        found = self._owned_volumes.require(leaf, found)
        if labels.IMPORTED in found.tags:
            raise not_ours_to_delete(self._owned_volumes.handle(found))
        if found.thick_origin:
            names = ", ".join(_thick_snapshots(report, found))
            raise InUse(f"logical volume {name} has snapshots that depend on it: {names}; delete them first")
        if labels.READING in found.tags:  # by a process that died; the snapshot is gone, so no other one reads it
            self._activation.release(name, tagged=True)
            if self._remove(name):
                return
        raise InUse(f"logical volume {name} is in use on this node; unpublish and unstage the volume first")

    # Cleanup

    def remove_leftovers(self) -> None:
        """Remove what no retry will finish, and deactivate volumes that were active only to be read."""
        report = self._client.report()
        for found in report.volumes.values():
            if self._owned_volumes.owner in found.tags:
                try:
                    self._clean_up(report, found)
                except StorageError as error:
                    log.warning("leftover %s of an interrupted operation cannot be removed yet: %s", found.name, error)

    def _clean_up(self, report: Report, found: LogicalVolume) -> None:
        if labels.READING in found.tags:
            self._activation.release(found.name, tagged=True)
        if found.thin and found.active and found.name.startswith(SNAPSHOT_PREFIX):  # it was copied into a thick volume
            self._activation.release(found.name, tagged=False)
        if found.name.startswith(ZEROED_SPACE_PREFIX):
            self.remove_zeroed_space(found.name)
        if found.name.startswith(CLONE_SOURCE_PREFIX):
            copy = report.volumes.get(VOLUME_PREFIX + found.name.removeprefix(CLONE_SOURCE_PREFIX))
            if copy is None or not incomplete(copy):
                self.remove_incomplete(found)
        since = labels.created_at(found.name, found.tags)
        if incomplete(found) and since and time.time() - since > ABANDONED:
            self.remove_incomplete(found)

    def remove_zeroed_space(self, name: str) -> None:
        """Remove space that was zeroed for a growth. Raises InUse, CommandRefused."""
        self._activation.deactivate(name)
        self._client.remove(name, f'lv_tags={{"{self._owned_volumes.owner}"}}')

    def resume_suspended(self, report: Report) -> None:
        """Resume the volumes, and the pool below them, that a killed lvm command left suspended."""
        seen = time.monotonic()
        for found in self._owned_volumes.all(report):
            if found.suspended:
                self._activation.resume(found.name, found.pool, seen=seen)
        if self._config.thin_pool:
            self._activation.resume(self._config.thin_pool)


def _thick_snapshots(report: Report, found: LogicalVolume) -> Iterator[str]:
    return (one.name for one in report.volumes.values() if one.origin == found.name and one.thick_snapshot)
