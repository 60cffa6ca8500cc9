"""A backend over files that has groups, to be broken by tests. Nothing is made of it when a call fails."""

from __future__ import annotations

import shutil
from dataclasses import replace

import msgspec

from csi_multi.contract import GroupSnapshot, GroupSnapshotRequest, Snapshot, SnapshotRequest, Strings, leaf
from csi_multi.contract import backend as b

from .file_backend import FileBackend

GROUPS = "groups"


class Grouped(FileBackend, b.GroupSnapshots):
    """Groups with a record of their own beside those of their members."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        handle = leaf(request.stamp.name)
        (self.root / GROUPS / handle).mkdir(parents=True)
        cuts = [self._member(request, number, source) for number, source in enumerate(request.sources)]
        group = GroupSnapshot(handle=handle, created=cuts[0].created, snapshots=tuple(cuts), stamp=request.stamp)
        (self.root / GROUPS / handle / "record").write_bytes(msgspec.json.encode(group))
        return group

    def _member(self, request: GroupSnapshotRequest, number: int, source: str) -> Snapshot:
        stamp = replace(request.stamp, name=f"{request.stamp.name} {number}")
        cut = self.create_snapshot(SnapshotRequest(stamp=stamp, source=source))
        return replace(cut, group=leaf(request.stamp.name))

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return self.get_group_snapshot(leaf(name))

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return self._read(GROUPS, handle, GroupSnapshot)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        for member in self.get_group_snapshot(handle).snapshots:
            self.delete_snapshot(member.handle, secrets)
        shutil.rmtree(self.root / GROUPS / handle)
