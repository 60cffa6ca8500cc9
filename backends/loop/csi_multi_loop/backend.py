"""The loop-file backend: every volume a sparse file, shown to its node as a loop device."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from csi_multi.contract import (
    Blank,
    Capacity,
    CapacityReport,
    CapacityRequest,
    Clone,
    Device,
    DryRunReport,
    Expand,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    HealthEntry,
    Import,
    InUse,
    InvalidArgument,
    ListSnapshots,
    ListVolumes,
    NodeHealthReporter,
    NodeLocal,
    OpenRequest,
    Page,
    PageRequest,
    Setting,
    Snapshot,
    SnapshotRequest,
    Stamp,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeHealth,
    VolumeHealthLister,
    VolumeRequest,
    ids,
    not_ours_to_delete,
    paged,
)
from csi_multi.host import loopdev, loopfile

from . import config, health
from .failures import translated
from .files import Files
from .freeze import Freezer
from .handles import Handles
from .importing import Importer
from .making import Maker
from .metadata import Broken, Format, SnapshotFile, VolumeFile
from .place import FROZEN, Place
from .shelf import Shelf
from .space import Space
from .still import Stillness


class LoopBackend(
    NodeLocal,
    Expand,
    Clone,
    ListVolumes,
    ListSnapshots,  # and so Snapshots
    Capacity,
    VolumeHealthLister,  # and so VolumeHealthReporter
    NodeHealthReporter,
    Import,  # and so Explain
):
    contract = (1, 0)
    Config = config.Config
    Parameters = config.Parameters

    config: config.Config

    def __init__(
        self,
        config: Any,
        setting: Setting,
        files: Files | None = None,
        place: Place | None = None,
        freezer: Freezer | None = None,
    ) -> None:
        """The last three are doors to the machine; by default the real ones."""
        super().__init__(config, setting)
        files = files or Files()
        self._place = place or Place(self.config, files)
        self._handles = Handles(setting.node)
        self._volumes = Shelf(self._place.directory, "volume", VolumeFile, setting, files)
        self._snapshots = Shelf(self._place.directory, "snapshot", SnapshotFile, setting, files)
        self._space = Space(self.config, self._place, self._volumes, self._snapshots)
        self._devices = loopfile.LoopDevices(setting.host)
        freezer = freezer or Freezer(setting.host, self._place.directory / FROZEN)
        self._stillness = Stillness(self._volumes, freezer)
        self._maker = Maker(
            self.config, self._place, self._volumes, self._snapshots, self._space, self._stillness, files
        )
        self._importer = Importer(self._place, self._volumes, self._space, files)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._make(request, self._maker.create)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        source = self._source("snapshot", request)
        return self._make(request, lambda leaf, request: self._maker.restore(leaf, request, source))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        source = self._source("volume", request)
        return self._make(request, lambda leaf, request: self._maker.clone(leaf, request, source))

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(self._handles.join(ids.leaf(name)))

    @translated("reading a volume")
    def get_volume(self, handle: str) -> Volume:
        self._place.guard()
        leaf = self._handles.leaf("volume", handle)
        return self._volume(leaf, self._volumes.read(leaf))

    @translated("deleting a volume")
    def delete_volume(self, handle: str, secrets: Strings) -> None:
        leaf = self._handles.leaf("volume", handle)
        self._place.guard()
        self._volumes.finish_removal(leaf)
        with self._volumes.holding(leaf):
            if self._volumes.read(leaf).stamp.imported:  # ours, or it raises
                raise not_ours_to_delete(handle)
            if attached := loopdev.find(self._volumes.image(leaf)):
                raise InUse(f"volume {handle!r} is attached to {attached[0]}; unpublish and unstage it first")
            self._volumes.remove(leaf)

    @translated("expanding a volume")
    def expand_volume(self, request: ExpandRequest) -> Expansion:
        leaf = self._handles.leaf("volume", request.handle)
        self._place.guard()
        return Expansion(size=self._maker.expand(leaf, request.size), node_required=True)

    @translated("listing volumes")
    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        def load(leaf: str) -> Volume | None:
            found = self._volumes.ours(leaf)
            return self._volume(leaf, found) if found else None

        self._place.guard()
        return paged(self._volumes.leaves(), page, load)

    @translated("importing a volume")
    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        self._place.prepare()
        leaf = ids.leaf(stamp.name)
        return self._volume(leaf, self._importer.take(leaf, Path(name), stamp))

    @translated("releasing a volume")
    def release_volume(self, handle: str) -> str:
        self._place.guard()
        return self._importer.release(self._handles.leaf("volume", handle), handle)

    # Snapshots

    @translated("cutting a snapshot")
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        source = self._handles.leaf("volume", request.source)
        self._place.prepare()
        leaf = ids.leaf(request.name)
        return self._snapshot(leaf, self._maker.snapshot(leaf, request, source))

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(self._handles.join(ids.leaf(name)))

    @translated("reading a snapshot")
    def get_snapshot(self, handle: str) -> Snapshot:
        self._place.guard()
        leaf = self._handles.leaf("snapshot", handle)
        return self._snapshot(leaf, self._snapshots.read(leaf))

    @translated("deleting a snapshot")
    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        leaf = self._handles.leaf("snapshot", handle)
        self._place.guard()
        self._snapshots.finish_removal(leaf)
        with self._snapshots.holding(leaf):
            self._snapshots.read(leaf)
            self._snapshots.remove(leaf)

    @translated("listing snapshots")
    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        def load(leaf: str) -> Snapshot | None:
            found = self._snapshots.ours(leaf)
            return self._snapshot(leaf, found) if found and source in (None, found.source) else None

        self._place.guard()
        return paged(self._snapshots.leaves(), page, load)

    # Devices

    @translated("opening a device")
    def open_device(self, request: OpenRequest) -> Device:
        leaf = self._handles.leaf("volume", request.handle)
        self._place.guard()
        image = self._volumes.image(leaf)
        with self._volumes.holding(leaf):
            found = self._volumes.read(leaf)
            health.refuse_incomplete(image, found.size)
            device = self._devices.open(image, sector_size=found.sector_size, read_only=request.read_only)
            return loopfile.device_of(device, found.format.blank)

    @translated("looking for a device")
    def find_device(self, handle: str) -> Device | None:
        leaf = self._handles.leaf("volume", handle)
        try:
            blank = self._volumes.read(leaf).format.blank
        except Broken:
            blank = Blank.NEVER  # it can still be unmounted and closed
        device = self._devices.find(self._volumes.image(leaf))
        return loopfile.device_of(device, blank) if device else None

    @translated("closing a device")
    def close_device(self, handle: str) -> None:
        self._devices.close(self._volumes.image(self._handles.leaf("volume", handle)))

    @translated("refreshing a device")
    def refresh_device(self, handle: str) -> None:
        self._devices.refresh(self._volumes.image(self._handles.leaf("volume", handle)))

    def formatting(self, handle: str) -> None:
        if self._note(handle, Format.FORMATTING) is Format.USED:
            raise FailedPrecondition(f"volume {handle!r} may hold data and must not be formatted")

    def formatted(self, handle: str) -> None:
        self._note(handle, Format.USED)

    # The instance

    def node_of(self, handle: str) -> str:
        return ids.split_local("volume", handle)[0]

    @translated("reading the capacity")
    def capacity(self, request: CapacityRequest) -> CapacityReport:
        least = self.config.min_size
        self._place.prepare()
        available = self._space.available()
        if available < least:
            available = 0
        most = min(available, self.config.max_size or available)
        return CapacityReport(available=available, maximum=most, minimum=least)

    @translated("checking the directory")
    def check(self) -> None:
        self._place.check()
        self._stillness.thaw_leftovers()

    @translated("cleaning up after an interrupted process")
    def resume(self) -> None:
        self._place.prepare()
        self._stillness.thaw_leftovers()
        self._volumes.sweep()
        self._snapshots.sweep()

    def dry_run(self, report: DryRunReport) -> LoopBackend:
        from .explaining import DryRunBackend  # which is one of these

        return DryRunBackend(self.config, self.setting, report)

    # Health

    @translated("reading the health of a volume")
    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        leaf = self._handles.leaf("volume", handle)
        self._place.guard()
        return health.of_volume(self._volumes, leaf)

    @translated("listing the health of volumes")
    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        def load(leaf: str) -> VolumeHealth | None:
            entries = health.of_listed(self._volumes, leaf)
            return VolumeHealth(handle=self._handles.join(leaf), entries=entries) if entries else None

        self._place.guard()
        return paged(self._volumes.leaves(), page, load)

    @translated("reading the health of a volume on its node")
    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        leaf = self._handles.leaf("volume", handle)
        seen = {(entry.status, entry.reason): entry for entry in health.of_volume(self._volumes, leaf)}
        for entry in health.of_device(self._volumes.image(leaf)):
            seen.setdefault((entry.status, entry.reason), entry)
        return tuple(seen.values())

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return health.of_place(self._place)

    @translated("making a volume")
    def _make(self, request: VolumeRequest, make: Callable[[str, VolumeRequest], VolumeFile]) -> Volume:
        self._place.prepare()
        leaf = ids.leaf(request.name)
        return self._volume(leaf, make(leaf, request))

    def _source(self, kind: str, request: VolumeRequest) -> str:
        if request.source is None or request.source.kind.value != kind:
            raise InvalidArgument(f"a {kind} is needed as content source")
        return self._handles.leaf(kind, request.source.handle)

    @translated("updating a volume's metadata")
    def _note(self, handle: str, state: Format) -> Format:
        """Move a volume's format state forward, never back, and return the state found."""
        leaf = self._handles.leaf("volume", handle)
        before = self._volumes.read(leaf).format
        if before not in (state, Format.USED):  # the common answer costs one small read and no lock
            with self._volumes.holding(leaf):
                found = self._volumes.read(leaf)
                before = found.format
                if before is not Format.USED:
                    self._volumes.write(leaf, msgspec.structs.replace(found, format=state))
        return before

    def _volume(self, leaf: str, found: VolumeFile) -> Volume:
        return Volume(handle=self._handles.join(leaf), size=found.size, stamp=found.stamp)

    def _snapshot(self, leaf: str, found: SnapshotFile) -> Snapshot:
        seconds, rest = divmod(found.created, 10**9)
        created = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
        return Snapshot(
            handle=self._handles.join(leaf), source=found.source, size=found.size, created=created, stamp=found.stamp
        )
