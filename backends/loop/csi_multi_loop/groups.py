"""Groups of snapshots: create, find, get, delete. All members are of one moment, and all or none exist."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from csi_multi.contract import GroupSnapshot, GroupSnapshotRequest, ids

from .directory import Directory
from .errors import translated
from .group_cut import Cut, GroupCut
from .group_store import GroupMembers, GroupStore, SnapshotStore, member_leaf
from .labels import GroupLabel, Member, SnapshotLabel, VolumeLabel
from .snapshots import SnapshotManager, source_of
from .store import IMAGE, Store


@dataclass(frozen=True, slots=True)
class _Building:
    """A member that is being built."""

    new: Path
    volume: str  # leaf
    label: SnapshotLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupManager:
    directory: Directory
    volumes: Store[VolumeLabel]
    snapshots: SnapshotStore
    groups: GroupStore
    members: GroupMembers
    manager: SnapshotManager
    group_cut: GroupCut

    @translated("creating a group snapshot")
    def create(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Raises AlreadyExists, NotFound, ResourceExhausted, InUse, Unavailable."""
        sources = [self.volumes.leaf(one) for one in request.sources]
        self.directory.prepare()
        leaf = ids.leaf(request.stamp.name)
        self.groups.create_directory()
        self.members.finish_removal(leaf)
        self.groups.refuse_taken(leaf)
        with self.groups.building(leaf, partial(self.members.remove_unlisted, leaf)) as new:
            self.members.remove_unlisted(leaf)  # what an interrupted creation left
            label = self._build_members(leaf, new, sources, request)
            self.groups.write(new, label)
        return self._shown(leaf, label)

    def find(self, name: str) -> GroupSnapshot:
        return self.get(self.groups.handle(ids.leaf(name)))

    @translated("reading a group snapshot")
    def get(self, handle: str) -> GroupSnapshot:
        self.directory.require_ready()
        leaf = self.groups.leaf(handle)
        return self._shown(leaf, self.groups.read(leaf))

    @translated("deleting a group snapshot")
    def delete(self, handle: str) -> None:
        leaf = self.groups.leaf(handle)
        self.directory.require_ready()
        self.members.finish_removal(leaf)
        with self.groups.locked(leaf):
            self.groups.read(leaf)  # refuses another owner's group
            self.members.remove_group(leaf)

    def _build_members(self, group: str, new: Path, sources: list[str], request: GroupSnapshotRequest) -> GroupLabel:
        """Build the snapshots, which get their names at the end and are not shown before the group has its own."""
        reflink = self.manager.client.can_reflink(new)
        draft = GroupLabel(stamp=request.stamp, created=0, members=())
        with ExitStack() as stack:
            building = [
                self._begin(stack, group, number, source, draft, reflink=reflink)
                for number, source in enumerate(sources)
            ]
            cuts = [Cut(one.volume, one.new / IMAGE) for one in building]
            created = self.group_cut.cut(cuts, reflink=reflink)
            for one in building:
                self.snapshots.write(one.new, msgspec.structs.replace(one.label, created=created))
        members = (
            Member(source=one.label.source, source_id=one.label.source_id, size=one.label.size) for one in building
        )
        return GroupLabel(stamp=request.stamp, created=created, members=tuple(members))

    def _begin(
        self, stack: ExitStack, group: str, number: int, source: str, draft: GroupLabel, *, reflink: bool
    ) -> _Building:
        """Lock a source, and prepare its snapshot: what takes time must not be done while volumes stand still."""
        new = stack.enter_context(self.snapshots.building(member_leaf(group, number)))
        volume = stack.enter_context(self.manager.quiescer.source(source))
        stamp = draft.member_stamp(number)
        label = self.manager.prepare(new, source, volume, stamp, reflink=reflink, group=group)
        return _Building(new, source, label)

    def _shown(self, leaf: str, label: GroupLabel) -> GroupSnapshot:
        group = self.groups.handle(leaf)
        members = (
            label.to_snapshot(
                number, self.snapshots.handle(member_leaf(leaf, number)), source_of(one, self.volumes), group
            )
            for number, one in enumerate(label.members)
        )
        return label.to_group(group, tuple(members))
