"""Backends whose group snapshots are incomplete, and the checks that find it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import groups
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    GroupSnapshot,
    GroupSnapshotRequest,
    Snapshot,
    SnapshotRequest,
    Strings,
    leaf,
)


class Loose(MemoryBackend):
    """Members do not know their group."""

    def get_snapshot(self, handle: str) -> Snapshot:
        return replace(super().get_snapshot(handle), group="")


class Partial(MemoryBackend):
    """Cuts all but the last volume, if there are several."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        return super().create_group_snapshot(replace(request, sources=request.sources[:-1] or request.sources))


class Leaving(MemoryBackend):
    """Deletes the group and leaves its members."""

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        self.get_group_snapshot(handle)
        self.storage.groups.pop(handle)


class Separable(MemoryBackend):
    """Deletes a member on its own."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self.get_snapshot(handle)
        self.storage.drop(self.storage.data, f"@{handle}")
        self.storage.drop(self.storage.snapshots, handle)


class Greedy(MemoryBackend):
    """Deletes all snapshots of the volumes."""

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        sources = {member.source for member in self.get_group_snapshot(handle).snapshots}
        super().delete_group_snapshot(handle, secrets)
        for snapshot in list(self.storage.snapshots.values()):
            if snapshot.source in sources:
                self.delete_snapshot(snapshot.handle, secrets)


class Emptying(MemoryBackend):
    """Deletes the data of the sources with their group, which nobody asked for."""

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        sources = [one.source for one in self.get_group_snapshot(handle).snapshots]
        super().delete_group_snapshot(handle, secrets)
        for source in sources:
            self.storage.drop(self.storage.data, source)


class OneByOne(MemoryBackend):
    """Cuts a volume after the other, and leaves what it has when one is missing."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        for number, source in enumerate(request.sources):
            stamp = replace(request.stamp, name=f"{request.stamp.name}-{number}")
            if stamp.name not in self.storage.snapshots:
                self.create_snapshot(SnapshotRequest(stamp=stamp, source=source))
        return super().create_group_snapshot(request)


class Again(MemoryBackend):
    """Cuts again under a name that is taken."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        self.storage.groups.pop(leaf(request.stamp.name), None)
        return super().create_group_snapshot(request)


class Obliging(MemoryBackend):
    """Answers a taken name with what is there, instead of telling the truth."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        try:
            return super().create_group_snapshot(request)
        except AlreadyExists:
            return self.find_group_snapshot(request.stamp.name)


class Now(MemoryBackend):
    """Was always cut just now."""

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return replace(super().get_group_snapshot(handle), created=datetime.now(UTC))


class Mixed(MemoryBackend):
    """Members hold each other's bytes."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        data = self.storage.data
        for member, other in zip(made.snapshots, reversed(made.snapshots), strict=True):
            data[f"@{member.handle}"] = dict(data.get(other.source, {}))
        return made


class GuardsTheFirst(MemoryBackend):
    """Refuses the deletion of the member that it looked at when this was written."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        group = self.get_snapshot(handle).group
        if group and self.get_group_snapshot(group).snapshots[0].handle != handle:
            self.storage.drop(self.storage.data, f"@{handle}")
            self.storage.drop(self.storage.snapshots, handle)
            return
        super().delete_snapshot(handle, secrets)


class Members(MemoryBackend):
    """Gives the members something else than their group: the defects below are what."""

    def member(self, number: int, one: Snapshot) -> Snapshot:
        return one

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        members = tuple(self.member(number, one) for number, one in enumerate(made.snapshots))
        self.storage.snapshots.update({one.handle: one for one in members})
        self.storage.groups[made.handle] = replace(made, snapshots=members)
        return self.storage.groups[made.handle]


class InTurn(Members):
    """Cuts a member after the other."""

    def member(self, number: int, one: Snapshot) -> Snapshot:
        return replace(one, created=one.created + timedelta(seconds=number))


class Ownerless(Members):
    def member(self, number: int, one: Snapshot) -> Snapshot:
        return replace(one, stamp=replace(one.stamp, cluster=""))


class Uprooting(MemoryBackend):
    """Deletes a group with what was made from its members."""

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        members = {one.handle for one in self.get_group_snapshot(handle).snapshots}
        super().delete_group_snapshot(handle, secrets)
        for volume in self.storage.volumes.values():
            if volume.stamp.source and volume.stamp.source.handle in members:
                self.storage.data.pop(volume.handle, None)


class Reviving(MemoryBackend):
    """Finds the bytes of a deleted group under its name."""

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        keys = [f"@{one.handle}" for one in self.get_group_snapshot(handle).snapshots]
        vars(self.storage)["old"] = {key: self.storage.data[key] for key in keys}
        super().delete_group_snapshot(handle, secrets)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        old = vars(self.storage).get("old", {})
        self.storage.data.update({key: blocks for key, blocks in old.items() if key in self.storage.data})
        return made


BROKEN = [
    (groups.a_group_has_one_member_per_volume, Loose, "then get_snapshot of a member: found"),
    (groups.a_group_has_one_member_per_volume, Partial, "the sources of the members"),
    (groups.a_group_is_deleted_with_its_members_and_nothing_else, Leaving, "the members that get_snapshot finds"),
    (groups.a_group_is_deleted_with_its_members_and_nothing_else, Emptying, "delete_group_snapshot: gone: data kit-"),
    (groups.a_group_is_deleted_with_its_members_and_nothing_else, Greedy, "of a snapshot without a group: raised"),
    (groups.a_member_is_not_deleted_without_its_group, Loose, "succeeded, the contract requires InvalidArgument"),
    (groups.a_member_is_not_deleted_without_its_group, Separable, "succeeded, the contract requires InvalidArgument"),
    (groups.a_member_is_not_deleted_without_its_group, GuardsTheFirst, "succeeded, the contract requires Invalid"),
    (groups.the_members_of_a_group_have_its_time_and_its_owner, InTurn, "Snapshot.created, against"),
    (groups.the_members_of_a_group_have_its_time_and_its_owner, Ownerless, "driver and cluster of its stamp"),
    (
        groups.a_copy_of_a_member_survives_the_deletion_of_the_group_or_refuses_it,
        Uprooting,
        "served, then the copy: the first block differs",
    ),
    (groups.the_name_of_a_deleted_group_can_be_used_again, Reviving, "restored from its member: the first block"),
    (groups.a_group_with_a_deleted_volume_is_not_created_at_all, OneByOne, "refused, but the storage changed"),
    (groups.a_repeated_request_gets_the_same_group, Again, "create_group_snapshot, repeated: found"),
    (groups.a_repeated_request_gets_the_same_group, Now, "create_group_snapshot, repeated: found"),
    (
        groups.other_volumes_under_the_name_of_a_group_are_a_conflict,
        Again,
        "succeeded, the contract requires AlreadyExists",
    ),
    (groups.a_group_name_is_reported_as_taken_or_unknown, Obliging, "succeeded, the contract requires AlreadyExists"),
    (groups.the_members_of_a_group_hold_the_data_of_their_volumes, Mixed, "the first block differs"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


class NeedsOnePlace(MemoryBackend):
    """Cuts only volumes that somebody has put together before."""

    together = False

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        if not self.together:
            raise FailedPrecondition("the volumes are not in one place")
        return super().create_group_snapshot(request)


@pytest.mark.parametrize(
    "check", [groups.a_group_has_one_member_per_volume, groups.a_repeated_request_gets_the_same_group]
)
def test_volumes_that_need_it_are_put_together_for_each_request(
    judged: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, put = memory.storage(NeedsOnePlace), []

    @contextmanager
    def together(handles: Collection[str]) -> Iterator[None]:
        put.append(len(handles))
        with monkeypatch.context() as patch:
            patch.setattr(NeedsOnePlace, "together", True)
            yield

    assert judged(check, lambda: storage).state is CheckState.FAILED
    outcome = judged(check, lambda: replace(storage, together=together))
    assert outcome.state is CheckState.PASSED, outcome.text
    assert set(put) == {2}
