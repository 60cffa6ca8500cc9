"""Backends that are torn when their process dies, and the checks that see it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import disturbance, memory
from csi_multi_testing.check import State
from csi_multi_testing.checks import after_crash, crashes
from csi_multi_testing.memory import Attachment, MemoryBackend
from csi_multi_testing.operations import base

from csi_multi.contract import (
    AlreadyExists,
    AttachRequest,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    GroupSnapshot,
    GroupSnapshotRequest,
    ModifyRequest,
    Node,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
    leaf,
    missing,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class StampLater(MemoryBackend):
    """Makes the volume first, and stamps it in a second call."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        bare = replace(request, stamp=replace(request.stamp, digest=""))
        made = replace(super().create_volume(bare), stamp=request.stamp)
        self.shelf.put(self.shelf.volumes, made.handle, made)
        return made


class NameLater(MemoryBackend):
    """Makes the volume under a random name and renames it: a retry does not know what is half-made."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.name in {one.stamp.name for one in self.shelf.volumes.values()}:
            raise AlreadyExists(request.name)
        draft = super().create_volume(replace(request, stamp=replace(request.stamp, name=uuid.uuid4().hex)))
        made = replace(draft, stamp=request.stamp)
        self.shelf.put(self.shelf.volumes, made.handle, made)
        return made

    def find_volume(self, name: str) -> Volume:
        found = [handle for handle, one in self.shelf.volumes.items() if one.stamp.name == name]
        return self.get_volume(found[0] if found else name)


class PublishFirst(MemoryBackend):
    """Shows a copy before its bytes are copied."""

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        made = self.create_volume(request_of_copy(request, self.get_snapshot(request.source.handle).size))
        self.shelf.put(self.shelf.data, made.handle, dict(self.shelf.data[f"@{request.source.handle}"]))
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        made = self.create_volume(request_of_copy(request, self.get_volume(request.source.handle).size))
        self.shelf.put(self.shelf.data, made.handle, dict(self.shelf.data[request.source.handle]))
        return made

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(replace(request, stamp=replace(request.stamp, source=None)), default)
        made = replace(made, stamp=request.stamp)
        self.shelf.volumes[made.handle] = made
        return made


def request_of_copy(request: VolumeRequest, size: int) -> VolumeRequest:
    return replace(request, size=replace(request.size, required=max(size, request.size.required)))


class CutAnew(MemoryBackend):
    """Keeps a snapshot's bytes under a random key, so that a retry cannot find them."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self.shelf.put(self.shelf.data, f"@{uuid.uuid4()}", {})
        return super().create_snapshot(request)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        for key in [key for key in self.shelf.data if len(key) == 37]:
            del self.shelf.data[key]


class RefusesMembers(MemoryBackend):
    """Takes the members that a dead process has cut for somebody else's."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        for snapshot in self.shelf.snapshots.values():
            if snapshot.stamp.name.startswith(f"{request.stamp.name}-"):
                raise AlreadyExists(f"snapshot {snapshot.handle!r} exists")
        return super().create_group_snapshot(request)


class RecordFirst(MemoryBackend):
    """Forgets what it deletes before it has deleted it."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        self.shelf.drop(self.shelf.volumes, handle)
        self.shelf.drop(self.shelf.data, handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self.get_snapshot(handle)
        self.shelf.drop(self.shelf.snapshots, handle)
        self.shelf.drop(self.shelf.data, f"@{handle}")

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        group = self.get_group_snapshot(handle)
        self.shelf.drop(self.shelf.groups, handle)
        for member in group.snapshots:
            self.delete_snapshot(member.handle, secrets)


class MarksWork(MemoryBackend):
    """Marks a volume while it works on it, and believes its own mark after a restart."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with_mark: Callable[[], Expansion] = lambda: super(MarksWork, self).expand_volume(request)  # noqa: E731
        return self._marked(request.handle, with_mark)

    def modify_volume(self, request: ModifyRequest) -> None:
        self._marked(request.handle, lambda: super(MarksWork, self).modify_volume(request))

    def _marked(self, handle: str, act: Callable[[], Any]) -> Any:
        if f"busy {handle}" in self.shelf.iops:
            raise FailedPrecondition(f"volume {handle!r} is being changed")
        self.shelf.put(self.shelf.iops, f"busy {handle}", 1)
        done = act()
        self.shelf.drop(self.shelf.iops, f"busy {handle}")
        return done


class AttachesInTwoSteps(MemoryBackend):
    """Attaches read-only first; detaches by first saying that the volume is nowhere."""

    def attach(self, request: AttachRequest) -> Strings:
        done = super().attach(replace(request, read_only=True))
        self.shelf.put(self.shelf.attached, request.handle, Attachment(request.node.id, request.read_only))
        return done

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if handle not in self.shelf.attached or (node and self.shelf.attached[handle].node != node.id):
            raise NotFound(f"volume {handle!r} is not attached there")
        self.shelf.put(self.shelf.attached, handle, Attachment("", False))
        self.shelf.drop(self.shelf.attached, handle)


class LeavesTheHalfMade(MemoryBackend):
    """Makes an empty volume over the bytes that a dead process had copied under its name."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        left = self.shelf.data.get(leaf(request.name), {})
        made = super().create_volume(request)
        if left:
            self.shelf.data[made.handle] = left
        return made


class HidesWhatItDeletes(MemoryBackend):
    """Marks a volume as deleted first, and takes the mark of a dead process for the end."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        volume = self.get_volume(handle)
        self.shelf.put(self.shelf.volumes, handle, replace(volume, stamp=replace(volume.stamp, name="")))
        super().delete_volume(handle, secrets)

    def get_volume(self, handle: str) -> Volume:
        found = super().get_volume(handle)
        if not found.stamp.name:
            raise missing("volume", handle)
        return found


class TakesSnapshotsAlong(MemoryBackend):
    """Deletes the snapshots of a volume, and notices at the end that they stay."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        blocks = {key: rows for key, rows in self.shelf.data.items() if key != handle}
        for key in blocks:
            self.shelf.drop(self.shelf.data, key)
        super().delete_volume(handle, secrets)
        for key, rows in blocks.items():
            self.shelf.put(self.shelf.data, key, rows)


class NumbersItsTries(MemoryBackend):
    """Keeps a draft per try, under the number of the try, and cleans up the last one only."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        drafts = [key for key in self.shelf.data if key.startswith(f"{request.name}.")]
        number = len(drafts) + 1
        self.shelf.put(self.shelf.data, f"{request.name}.{number}", {})
        made = super().create_volume(request)
        for last in (number, number - 1):
            self.shelf.drop(self.shelf.data, f"{request.name}.{last}")
        return made


class FinishesRemoval(MemoryBackend):
    """Correct: does not show what it deletes any more, and finishes that when it is deleted again."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        if f"@{handle}" not in self.shelf.data:
            raise missing("snapshot", handle)
        self.shelf.drop(self.shelf.snapshots, handle)
        self.shelf.drop(self.shelf.data, f"@{handle}")


BROKEN = [
    (crashes.a_creation_that_died_anywhere_is_made_once, StampLater, "exists with other parameters"),
    (crashes.a_creation_that_died_anywhere_is_made_once, NameLater, "2 new resources"),
    (crashes.a_restore_that_died_anywhere_is_made_once, PublishFirst, "the first block differs"),
    (crashes.a_clone_that_died_anywhere_is_made_once, PublishFirst, "the first block differs"),
    (crashes.a_snapshot_that_died_anywhere_is_cut_once, CutAnew, "new resources"),
    (crashes.a_group_snapshot_that_died_anywhere_is_cut_once, RefusesMembers, "is being created or deleted"),
    (crashes.a_deletion_of_a_volume_that_died_anywhere_is_finished, RecordFirst, "left behind: data"),
    (crashes.a_deletion_of_a_snapshot_that_died_anywhere_is_finished, RecordFirst, "left behind: data"),
    (crashes.a_deletion_of_a_group_that_died_anywhere_is_finished, RecordFirst, "left behind: "),
    (crashes.a_growth_that_died_anywhere_is_finished, MarksWork, "is being changed"),
    (crashes.a_modification_that_died_anywhere_is_finished, MarksWork, "is being changed"),
    (after_crash.what_died_twice_anywhere_is_made_once, NumbersItsTries, "2 new resources"),
    (after_crash.another_request_may_come_after_a_creation_that_died, LeavesTheHalfMade, "shows the bytes of what"),
    (after_crash.another_request_may_come_after_a_creation_that_died, NameLater, "left behind after"),
    (
        after_crash.a_name_whose_deletion_died_and_was_repeated_is_free,
        HidesWhatItDeletes,
        "is being created or deleted",
    ),
    (
        after_crash.snapshots_outlive_a_deletion_of_their_source_that_died,
        TakesSnapshotsAlong,
        "the first block differs",
    ),
    (crashes.an_attachment_that_died_anywhere_is_made, AttachesInTwoSteps, "is attached with read_only"),
    (crashes.a_detachment_that_died_anywhere_is_finished, AttachesInTwoSteps, "published_nodes: found"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_removal_may_be_invisible_before_it_is_finished(judged: Any) -> None:
    outcome = judged(crashes.a_deletion_of_a_snapshot_that_died_anywhere_is_finished, FinishesRemoval)

    assert outcome.state is State.PASSED, outcome.text


def test_a_boundary_that_is_not_named_is_told(judged: Any) -> None:
    outcome = judged(crashes.a_creation_that_died_anywhere_is_made_once, lambda: memory.storage(calls=()))

    assert outcome.state is State.SKIPPED
    assert "no call through the boundary was seen" in outcome.text


def test_the_report_says_how_many_points_were_met(judged: Any) -> None:
    outcome = judged(crashes.a_clone_that_died_anywhere_is_made_once, MemoryBackend)

    assert [note.rstrip("0123456789") for note in outcome.notes] == ["clone_volume dies, calls met: "] * 2


def test_deaths_are_not_tried_at_calls_that_only_look(judged: Any, fails: Any) -> None:
    def looking(**given: Any) -> Any:
        return lambda kind=MemoryBackend: memory.storage(kind, looks=("fetch", "promised"), **given)

    everywhere, fewer = (
        [
            int(note.rpartition(" ")[2])
            for note in judged(crashes.a_clone_that_died_anywhere_is_made_once, storage).notes
        ]
        for storage in (MemoryBackend, looking())
    )

    assert all(0 < few < many for few, many in zip(fewer, everywhere, strict=True))
    fails(
        crashes.a_snapshot_that_died_anywhere_is_cut_once, lambda: looking()(CutAnew), "new resources"
    )  # what is left is seen all the same


def test_an_operation_of_too_many_calls_is_loud(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "MOST", 2)

    fails(crashes.a_clone_that_died_anywhere_is_made_once, MemoryBackend, "clone_volume makes more than 2 calls")
