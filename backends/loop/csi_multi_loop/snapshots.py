"""Snapshots: create, find, get, delete. A snapshot is a copy of its source's image."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from csi_multi.contract import FailedPrecondition, NotFound, Snapshot, SnapshotRequest, WrongNode, ids

from .capacity import CapacityAccounting
from .client import Client
from .directory import Directory
from .errors import translated
from .health import complete_size
from .image_usage import ImageUsage, allocated
from .labels import SnapshotLabel, VolumeLabel, new_token
from .quiesce import Quiescer
from .store import IMAGE, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManager:
    directory: Directory
    volumes: Store[VolumeLabel]
    snapshots: Store[SnapshotLabel]
    capacity: CapacityAccounting
    quiescer: Quiescer
    client: Client

    @translated("creating a snapshot")
    def create(self, request: SnapshotRequest) -> Snapshot:
        """Raises AlreadyExists, NotFound, ResourceExhausted."""
        source = self.volumes.leaf(request.source)
        self.directory.prepare()
        leaf = ids.leaf(request.name)
        self.snapshots.refuse_taken(leaf)
        with self.snapshots.building(leaf) as new, self.quiescer.source(source) as volume:
            image = self.volumes.image(source)
            reflink = self.client.can_reflink(new)
            label = SnapshotLabel(
                stamp=request.stamp,
                source=request.source,
                created=0,
                size=complete_size(image, volume.size),
                sector_size=volume.sector_size,
                data=allocated(image.stat()),
                family=volume.family if reflink else new_token(),
                reflinked=reflink,
                source_id=volume.id,
            )
            usage = ImageUsage(label.family, 0 if reflink else label.data, label.data if reflink else 0)
            with self.capacity.admit(usage, written=0 if reflink else label.data):
                self.snapshots.write(new, label)
            with self.quiescer.quiesced(source, reflink):
                label = msgspec.structs.replace(label, created=time.time_ns())
                self.client.copy(image, new / IMAGE, reflink=reflink)
            self.snapshots.write(new, label)
        return label.to_snapshot(self.snapshots.handle(leaf), request.source)

    def find(self, name: str) -> Snapshot:
        return self.get(self.snapshots.handle(ids.leaf(name)))

    @translated("reading a snapshot")
    def get(self, handle: str) -> Snapshot:
        self.directory.require_ready()
        leaf = self.snapshots.leaf(handle)
        label = self.snapshots.read(leaf)
        return label.to_snapshot(self.snapshots.handle(leaf), source_of(label, self.volumes))

    @translated("deleting a snapshot")
    def delete(self, handle: str) -> None:
        leaf = self.snapshots.leaf(handle)
        self.directory.require_ready()
        self.snapshots.finish_removal(leaf)
        with self.snapshots.locked(leaf):
            self.snapshots.read(leaf)  # refuses another owner's snapshot
            self.snapshots.remove(leaf)


def source_of(label: SnapshotLabel, volumes: Store[VolumeLabel]) -> str:
    """Return the handle of a snapshot's source, or what stands for it if another volume has its name now."""
    try:
        present = volumes.read(volumes.leaf(label.source))
    except (NotFound, WrongNode, FailedPrecondition):
        return label.source
    return label.source if present.id == label.source_id else earlier_source(label)


def earlier_source(label: SnapshotLabel) -> str:
    """Return what stands for the source once another volume has its name."""
    return ids.earlier(label.source, label.source_id)
