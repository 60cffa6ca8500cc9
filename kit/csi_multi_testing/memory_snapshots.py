"""The snapshots, group snapshots and changed blocks of the backend in memory (memory.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from csi_multi.contract import (
    AlreadyExists,
    BlockMap,
    Extent,
    GroupSnapshot,
    GroupSnapshotRequest,
    InvalidArgument,
    OutOfRange,
    Page,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    Strings,
)
from csi_multi.contract import backend as b

from .memory_storage import GRANULE, MemoryStorage, now


class MemorySnapshots(b.ListSnapshots, b.GroupSnapshots, b.ChangedBlocks):
    """What a MemoryBackend does with snapshots; their data is kept under "@" and the handle."""

    storage: MemoryStorage

    def leaf(self, name: str) -> str:
        raise NotImplementedError

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        handle = self.leaf(request.name)
        with self.storage.lock:
            if handle in self.storage.snapshots:
                raise AlreadyExists(f"snapshot {request.name!r} exists")
            if f"@{handle}" in self.storage.data:
                self.storage.drop(self.storage.data, f"@{handle}")
            source = self.get_volume(request.source)
            snapshot = Snapshot(
                handle=handle,
                source=source.handle,
                size=source.size,
                created=now(),
                stamp=request.stamp,
            )
            self.storage.put(self.storage.data, f"@{snapshot.handle}", dict(self.storage.data.get(source.handle, {})))
            self.storage.put(self.storage.snapshots, snapshot.handle, snapshot)
        return snapshot

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(self.leaf(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return self.storage.fetch(self.storage.snapshots, "snapshot", handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        with self.storage.lock:
            if group := self.get_snapshot(handle).group:
                raise InvalidArgument(f"snapshot {handle!r} is a member of group {group!r}; delete the group")
            self.storage.drop(self.storage.data, f"@{handle}")
            self.storage.drop(self.storage.snapshots, handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        with self.storage.lock:
            return self.storage.listed(
                {key: one for key, one in self.storage.snapshots.items() if source in (None, one.source)}, page
            )

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        handle, created = self.leaf(request.stamp.name), now()
        with self.storage.lock:
            if handle in self.storage.groups:
                raise AlreadyExists(f"group snapshot {request.stamp.name!r} exists")
            self._drop_members(handle)
            members = []
            for number, source in enumerate(request.sources):
                stamp = replace(request.stamp, name=f"{request.stamp.name}-{number}")
                size = self.get_volume(source).size
                members.append(
                    Snapshot(
                        handle=f"{member_prefix(handle)}{number}",
                        source=source,
                        size=size,
                        created=created,
                        stamp=stamp,
                        group=handle,
                    )
                )
            group = GroupSnapshot(handle=handle, snapshots=tuple(members), created=created, stamp=request.stamp)
            for member in members:
                self.storage.put(self.storage.data, f"@{member.handle}", dict(self.storage.data.get(member.source, {})))
                self.storage.put(self.storage.snapshots, member.handle, member)
            self.storage.put(self.storage.groups, handle, group)
        return group

    def _drop_members(self, group: str) -> None:
        """Drop the members of a process that died before the group was complete."""
        for key in [key for key in self.storage.data if key.startswith(f"@{member_prefix(group)}")]:
            found = self.storage.snapshots.get(key[1:])
            if found is None or found.group == group:
                self.storage.drop(self.storage.data, key)
                self.storage.drop(self.storage.snapshots, key[1:])

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return self.get_group_snapshot(self.leaf(name))

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return self.storage.fetch(self.storage.groups, "group snapshot", handle)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        group = self.get_group_snapshot(handle)
        for member in group.snapshots:
            self.storage.drop(self.storage.data, f"@{member.handle}")
            self.storage.drop(self.storage.snapshots, member.handle)
        self.storage.drop(self.storage.groups, handle)

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return self._blocks(self.get_snapshot(handle), offset, {})

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        self.get_snapshot(base)
        return self._blocks(self.get_snapshot(target), offset, self.storage.data.get(f"@{base}", {}))

    def _blocks(self, snapshot: Snapshot, offset: int, base: Mapping[int, bytes]) -> BlockMap:
        """Return the blocks that differ from the base, and the first ones: the contract allows more than necessary."""
        if offset > snapshot.size:
            raise OutOfRange(f"offset {offset} is beyond the end at {snapshot.size}")
        blocks = self.storage.data.get(f"@{snapshot.handle}", {})
        offsets = set(range(0, min(snapshot.size, 4 * GRANULE), GRANULE))
        offsets |= {at for at in blocks.keys() | base.keys() if blocks.get(at) != base.get(at)}
        extents = (Extent(offset=at, length=GRANULE) for at in sorted(offsets) if at + GRANULE > offset)
        return BlockMap(size=snapshot.size, extents=extents, block_size=GRANULE)


def member_prefix(group: str) -> str:
    """Return how the handles of a group's members begin. `leaf` returns nothing like it for the name of a snapshot."""
    node, slash, leaf = group.rpartition("/")
    return f"{node}{slash}x-{leaf}-"
