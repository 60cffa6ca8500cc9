"""Snapshots: create, find, get, delete. A snapshot is a copy of its source's image (groups of them: groups.py)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Stamp,
    WrongNode,
    ids,
)

from .capacity import CapacityAccounting
from .client import Client
from .directory import Directory
from .errors import translated
from .group_store import GroupStore, SnapshotStore
from .health import complete_size
from .image_usage import ImageUsage, allocated
from .labels import MEMBER_VERSION, Member, SnapshotLabel, VolumeLabel, new_token
from .quiesce import Quiescer
from .store import IMAGE, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManager:
    directory: Directory
    volumes: Store[VolumeLabel]
    snapshots: SnapshotStore
    groups: GroupStore
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
            reflink = self.client.can_reflink(new)
            label = self.prepare(new, source, volume, request.stamp, reflink=reflink)
            with self.quiescer.quiesced(source, reflink):
                label = msgspec.structs.replace(label, created=time.time_ns())
                self.client.copy(self.volumes.image(source), new / IMAGE, reflink=reflink)
            self.snapshots.write(new, label)
        return label.to_snapshot(self.snapshots.handle(leaf), request.source)

    def prepare(
        self, new: Path, source: str, volume: VolumeLabel, stamp: Stamp, *, reflink: bool, group: str = ""
    ) -> SnapshotLabel:
        """Write the label of a snapshot that is built of a locked volume, and take its space. The time is missing."""
        image = self.volumes.image(source)
        label = SnapshotLabel(
            stamp=stamp,
            source=self.volumes.handle(source),
            created=0,
            size=complete_size(image, volume.size),
            sector_size=volume.sector_size,
            data=allocated(image.stat()),
            family=volume.family if reflink else new_token(),
            reflinked=reflink,
            source_id=volume.id,
            group=group,
            version=MEMBER_VERSION if group else 1,
        )
        usage = ImageUsage(label.family, 0 if reflink else label.data, label.data if reflink else 0)
        with self.capacity.admit(usage, written=0 if reflink else label.data):
            self.snapshots.write(new, label)
        return label

    def find(self, name: str) -> Snapshot:
        return self.get(self.snapshots.handle(ids.leaf(name)))

    @translated("reading a snapshot")
    def get(self, handle: str) -> Snapshot:
        self.directory.require_ready()
        leaf = self.snapshots.leaf(handle)
        label = self.snapshots.read(leaf)
        group = self.groups.handle(label.group) if label.group else ""
        return label.to_snapshot(self.snapshots.handle(leaf), source_of(label, self.volumes), group)

    @translated("deleting a snapshot")
    def delete(self, handle: str) -> None:
        leaf = self.snapshots.leaf(handle)
        self.directory.require_ready()
        self.snapshots.finish_removal(leaf)
        with self.snapshots.locked(leaf):
            if group := self.snapshots.read(leaf).group:  # read() refuses another owner's snapshot
                raise InvalidArgument(
                    f"snapshot {handle!r} is a member of group snapshot {self.groups.handle(group)!r} and is deleted "
                    "with it only; delete the group"
                )
            self.snapshots.remove(leaf)


def source_of(label: SnapshotLabel | Member, volumes: Store[VolumeLabel]) -> str:
    """Return the handle of a snapshot's source, or what stands for it if another volume has its name now."""
    try:
        present = volumes.read(volumes.leaf(label.source))
    except (NotFound, WrongNode, FailedPrecondition):
        return label.source
    return label.source if present.id == label.source_id else earlier_source(label)


def earlier_source(label: SnapshotLabel | Member) -> str:
    """Return what stands for the source once another volume has its name."""
    return ids.earlier(label.source, label.source_id)
