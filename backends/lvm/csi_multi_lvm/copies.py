"""Restore and clone volumes: by sharing blocks within a thin pool, otherwise by a copy that a restart resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from csi_multi.contract import Busy, InvalidArgument, StorageError, Timeout, Unavailable, VolumeRequest

from . import block_io, labels
from .client import Client
from .labels import CLONE_SOURCE_PREFIX
from .layout import Layout
from .operation import InstanceParts, Operation
from .report import LogicalVolume
from .snapshots import SnapshotManager
from .volumes import VolumeManager

RETRIED = (Busy, Unavailable, Timeout)  # errors after which the orchestrator tries again


class VolumeCopier(Operation):
    def __init__(self, instance: InstanceParts, volumes: VolumeManager, snapshots: SnapshotManager) -> None:
        super().__init__(instance)
        self._volumes = volumes
        self._snapshots = snapshots

    def restore(self, request: VolumeRequest) -> LogicalVolume:
        """Create a volume from a snapshot. Raises what VolumeManager.create raises, NotFound, FailedPrecondition."""
        source_leaf = self._owned_snapshots.leaf(_source(request, "snapshot"))  # may be another node's: before commands
        leaf = self._owned_volumes.leaf_for(request.name)
        found = self._leftovers(leaf)
        with self._removed_after_final_error(leaf):  # also of a source that was deleted since an earlier try
            source = self._owned_snapshots.get_cached(self._reports.get(), source_leaf)
            self._snapshots.refuse_overflowed(source)
            layout = self._volumes.layout(request)
            earlier = self._resumable(leaf, request, found)
            if self._can_share(layout, source):
                return self._share(leaf, request, layout, source, earlier)
            return self._copy(leaf, request, layout, source, earlier)

    def clone(self, request: VolumeRequest) -> LogicalVolume:
        """Create a volume from another one as it is at one moment. Raises as restore."""
        source_leaf = self._owned_volumes.leaf(_source(request, "volume"))  # may be another node's: before commands
        leaf = self._owned_volumes.leaf_for(request.name)
        found = self._leftovers(leaf)
        frozen = next((one for one in found if one.name == CLONE_SOURCE_PREFIX + leaf), None)
        with self._removed_after_final_error(leaf):
            source = self._owned_volumes.get_cached(self._reports.get(), source_leaf)
            layout = self._volumes.layout(request)
            if self._can_share(layout, source):
                return self._share(leaf, request, layout, source, self._resumable(leaf, request, found))
            if len(found) < 2 or frozen is None or frozen.invalid or frozen.origin != source.name:
                self._remove_incomplete(
                    found
                )  # an incomplete copy can only be resumed from the snapshot it was begun with
                found, frozen = [], None
            earlier = self._resumable(leaf, request, found)
            frozen = frozen or self._snapshots.create_clone_source(CLONE_SOURCE_PREFIX + leaf, source)
            volume = self._copy(leaf, request, layout, frozen, earlier)
        self._volumes.remove_incomplete(frozen)
        return volume

    def _leftovers(self, leaf: str) -> list[LogicalVolume]:
        return self._volumes.leftovers(leaf) if self._volumes.listed(self._reports.get(), leaf) else []

    def _can_share(self, layout: Layout, source: LogicalVolume) -> bool:
        return layout.thin and source.thin and source.pool == self._config.thin_pool

    def _resumable(self, leaf: str, request: VolumeRequest, found: list[LogicalVolume]) -> LogicalVolume | None:
        """Return the incomplete volume if the same request began it; another one is removed."""
        volume = next((one for one in found if one.name == self._owned_volumes.name(leaf)), None)
        if volume is None:
            return None
        has_integrity = labels.with_prefix(volume.tags, labels.BYTES_COPIED)
        if (
            (has_integrity or not self._volumes.layout(request).integrity)
            and self._owned_volumes.stamp(volume) == request.stamp
            and request.size.holds(labels.byte_count(volume.name, volume.tags, labels.INTENDED_SIZE))
        ):
            return volume
        self._volumes.remove_incomplete(volume)
        return None

    def _share(
        self, leaf: str, request: VolumeRequest, layout: Layout, source: LogicalVolume, earlier: LogicalVolume | None
    ) -> LogicalVolume:
        """Create a thin snapshot as an independent volume; a larger one is incomplete until it has its size."""
        name = self._owned_volumes.name(leaf)
        with self._volumes.admission() as report:
            size = self._volumes.size(report, layout, request.size, source.size)
            larger = _incomplete_tags(size) if size > source.size else []
            if earlier is None:
                self._snapshots.admit_thin(report, size)
                with self._volumes.refusals_of_creation(leaf):
                    tags = [*self._volumes.tags(request, layout), *larger]
                    self._activation.resume(source.name, source.pool)
                    self._client.create_snapshot(name, source.name, ("-p", "rw"), tags)
        self._reports.clear()
        if earlier is None and not larger:
            return self._owned_volumes.new(leaf, size, self._volumes.tags(request, layout))
        volume = self._client.get(name)
        size = labels.byte_count(name, volume.tags, labels.INTENDED_SIZE)
        if volume.size < size:
            self._client.extend_thin(name, size)
        return self._complete(volume, size, [])

    def _copy(
        self, leaf: str, request: VolumeRequest, layout: Layout, source: LogicalVolume, earlier: LogicalVolume | None
    ) -> LogicalVolume:
        """Create a volume of any type and copy every byte into it, so that no old data remains."""
        name, data = self._owned_volumes.name(leaf), _data_size(source)
        if earlier is None:
            with self._volumes.admission() as report:
                size = self._volumes.size(report, layout, request.size, data)
                tags = [*self._volumes.tags(request, layout), *_incomplete_tags(size)]
                self._volumes.allocate(leaf, layout, size, report, tags)
        volume = self._client.get(name)
        size = labels.byte_count(name, volume.tags, labels.INTENDED_SIZE)
        progress = _CopyProgress(self._client, volume)
        with self._activation.reading(source) as origin, self._activation.reading(volume) as target:
            confirm, done = self._confirm(source, volume), progress.done
            block_io.copy(origin, target, min(done, data), data, progress.record, confirm, sparse=volume.thin)
            if not volume.thin:
                block_io.zero(target, max(done, data), size, progress.record)
        return self._complete(volume, size, progress.tags)

    def _confirm(self, source: LogicalVolume, volume: LogicalVolume) -> Callable[[], None]:
        """Return a check that the incomplete volume is unchanged: another process may have completed it.

        It raises FailedPrecondition for a thick snapshot without data, which LVM only reports while it is active.
        """

        def confirm() -> None:
            both = self._client.find(source.name, volume.name)
            if source.thick_snapshot:
                self._snapshots.refuse_overflowed(both.get(source.name, source))
            found = both.get(volume.name)
            if found is None or found.tags != volume.tags:
                raise Busy(f"another process changed logical volume {volume.name} at the same time; try again")

        return confirm

    def _complete(self, volume: LogicalVolume, size: int, progress_tags: list[str]) -> LogicalVolume:
        """Remove the tags that make the volume incomplete, so that it is found from now on."""
        incomplete_tags = labels.with_prefix(volume.tags, labels.INTENDED_SIZE, labels.CREATED_AT)
        self._client.change_tags(volume.name, remove=[*incomplete_tags, *progress_tags])
        self._reports.clear()
        return self._owned_volumes.new(volume.name.removeprefix(self._owned_volumes.prefix), size, volume.tags)

    @contextmanager
    def _removed_after_final_error(self, leaf: str) -> Iterator[None]:
        """Remove the incomplete volume after an error that is not retried."""
        try:
            yield
        except RETRIED:
            raise
        except StorageError:
            self._remove_incomplete(self._volumes.leftovers(leaf))
            raise

    def _remove_incomplete(self, found: list[LogicalVolume]) -> None:
        for one in found:
            self._volumes.remove_incomplete(one)


class _CopyProgress:
    """The progress of a copy, which is recorded in a tag of the incomplete volume."""

    def __init__(self, client: Client, volume: LogicalVolume) -> None:
        self._client = client
        self._name = volume.name
        self.tags = labels.with_prefix(volume.tags, labels.BYTES_COPIED)
        self.done = labels.byte_count(volume.name, volume.tags, labels.BYTES_COPIED)

    def record(self, offset: int) -> None:
        current = f"{labels.BYTES_COPIED}{offset}"
        self._client.change_tags(self._name, add=[current], remove=[tag for tag in self.tags if tag != current])
        self.tags = [current]


def _incomplete_tags(size: int) -> list[str]:
    """Return the tags of an incomplete volume: its intended size, and its age, for VolumeManager.remove_leftovers."""
    return [f"{labels.INTENDED_SIZE}{size}", f"{labels.CREATED_AT}{time.time():.6f}"]


def _data_size(source: LogicalVolume) -> int:
    """Return the bytes to copy: of a snapshot, the size of its volume when it was created."""
    return labels.byte_count(source.name, source.tags, labels.SOURCE_SIZE) or source.size


def _source(request: VolumeRequest, kind: str) -> str:
    """Return the source's handle. Raises InvalidArgument when the request has none of this kind."""
    if request.source is None or request.source.kind.value != kind:
        raise InvalidArgument(f"the content source must be a {kind}; name one")
    return request.source.handle
