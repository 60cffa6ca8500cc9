"""Backends that do not survive the death of their process, and the checks that find it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import fault_sweep, memory
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import crashes
from csi_multi_testing.memory import Attachment, MemoryBackend
from csi_multi_testing.operations import base, effects

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
    missing,
)

from .late_name import NameLater
from .test_expand import NodeOnce


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))
    monkeypatch.setattr(effects, "LIMIT", 0.1)


class StampLater(MemoryBackend):
    """Makes the volume first, and stamps it in a second call."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        bare = replace(request, stamp=replace(request.stamp, digest=""))
        made = replace(super().create_volume(bare), stamp=request.stamp)
        self.storage.put(self.storage.volumes, made.handle, made)
        return made


class PublishFirst(MemoryBackend):
    """Shows a copy before its bytes are copied."""

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        made = self.create_volume(request_of_copy(request, self.get_snapshot(request.source.handle).size))
        self.storage.put(self.storage.data, made.handle, dict(self.storage.data[f"@{request.source.handle}"]))
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        made = self.create_volume(request_of_copy(request, self.get_volume(request.source.handle).size))
        self.storage.put(self.storage.data, made.handle, dict(self.storage.data[request.source.handle]))
        return made

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(replace(request, stamp=replace(request.stamp, source=None)), default)
        made = replace(made, stamp=request.stamp)
        self.storage.volumes[made.handle] = made
        return made


def request_of_copy(request: VolumeRequest, size: int) -> VolumeRequest:
    return replace(request, size=replace(request.size, required=max(size, request.size.required)))


class CutAnew(MemoryBackend):
    """Keeps a snapshot's bytes under a random key, so that a retry cannot find them."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self.storage.put(self.storage.data, f"@{uuid.uuid4()}", {})
        return super().create_snapshot(request)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        for key in [key for key in self.storage.data if len(key) == 37]:
            del self.storage.data[key]


class RefusesMembers(MemoryBackend):
    """Takes the members that a dead process has cut for another owner's."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        for snapshot in self.storage.snapshots.values():
            if snapshot.stamp.name.startswith(f"{request.stamp.name}-"):
                raise AlreadyExists(f"snapshot {snapshot.handle!r} exists")
        return super().create_group_snapshot(request)


class RecordFirst(MemoryBackend):
    """Forgets what it deletes before it has deleted it."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        self.storage.drop(self.storage.volumes, handle)
        self.storage.drop(self.storage.data, handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self.get_snapshot(handle)
        self.storage.drop(self.storage.snapshots, handle)
        self.storage.drop(self.storage.data, f"@{handle}")

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        group = self.get_group_snapshot(handle)
        self.storage.drop(self.storage.groups, handle)
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
        if f"busy {handle}" in self.storage.iops:
            raise FailedPrecondition(f"volume {handle!r} is being changed")
        self.storage.put(self.storage.iops, f"busy {handle}", 1)
        done = act()
        self.storage.drop(self.storage.iops, f"busy {handle}")
        return done


class NotesFirst(MemoryBackend):
    """Notes what it was asked for before it is done, and believes its note."""

    def modify_volume(self, request: ModifyRequest) -> None:
        self._once(request.handle, request.mutable.iops, lambda: super(NotesFirst, self).modify_volume(request))

    def _once(self, handle: str, iops: Any, act: Callable[[], Any]) -> None:
        if self.storage.iops.get(f"asked of {handle}") != iops:
            self.storage.put(self.storage.iops, f"asked of {handle}", iops)
            act()


class SetsLater(MemoryBackend):
    """Sets the parameters of a volume that exists, and does not look at them when the request is repeated."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(replace(request, mutable=None), default)
        if request.mutable:
            self.storage.put(self.storage.iops, made.handle, request.mutable.iops)
        return made


class AttachesInTwoSteps(MemoryBackend):
    """Attaches read-only first; detaches by first saying that the volume is nowhere."""

    def attach(self, request: AttachRequest) -> Strings:
        done = super().attach(replace(request, read_only=True))
        self.storage.put(self.storage.attached, request.handle, Attachment(request.node.id, request.read_only))
        return done

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if handle not in self.storage.attached or (node and self.storage.attached[handle].node != node.id):
            raise NotFound(f"volume {handle!r} is not attached there")
        self.storage.put(self.storage.attached, handle, Attachment("", False))
        self.storage.drop(self.storage.attached, handle)


class FinishesRemoval(MemoryBackend):
    """Correct: does not show what it deletes any more, and finishes that when it is deleted again."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        if f"@{handle}" not in self.storage.data:
            raise missing("snapshot", handle)
        self.storage.drop(self.storage.snapshots, handle)
        self.storage.drop(self.storage.data, f"@{handle}")


BROKEN = [
    (crashes.a_creation_completes_once_after_a_crash_at_any_call, StampLater, "exists with other parameters"),
    (crashes.a_creation_completes_once_after_a_crash_at_any_call, NameLater, "2 new resources"),
    (crashes.a_restore_completes_once_after_a_crash_at_any_call, PublishFirst, "the first block differs"),
    (crashes.a_clone_completes_once_after_a_crash_at_any_call, PublishFirst, "the first block differs"),
    (crashes.a_snapshot_completes_once_after_a_crash_at_any_call, CutAnew, "new resources"),
    (crashes.a_group_snapshot_completes_once_after_a_crash_at_any_call, RefusesMembers, "is being created or deleted"),
    (crashes.a_volume_deletion_completes_after_a_crash_at_any_call, RecordFirst, "remaining: data"),
    (crashes.a_snapshot_deletion_completes_after_a_crash_at_any_call, RecordFirst, "remaining: data"),
    (crashes.a_group_deletion_completes_after_a_crash_at_any_call, RecordFirst, "remaining: "),
    (crashes.a_creation_completes_once_after_a_crash_at_any_call, SetsLater, "Storage.effect, compared with"),
    (crashes.a_modification_completes_after_a_crash_at_any_call, NotesFirst, "Storage.effect, compared with"),
    (crashes.an_expansion_completes_after_a_crash_at_any_call, NodeOnce, "node_required is False, and True without"),
    (crashes.an_expansion_completes_after_a_crash_at_any_call, MarksWork, "is being changed"),
    (crashes.a_modification_completes_after_a_crash_at_any_call, MarksWork, "is being changed"),
    (crashes.an_attachment_completes_after_a_crash_at_any_call, AttachesInTwoSteps, "is attached with read_only"),
    (crashes.a_detachment_completes_after_a_crash_at_any_call, AttachesInTwoSteps, "published_nodes: found"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_removal_may_be_invisible_before_it_is_finished(judged: Any) -> None:
    outcome = judged(crashes.a_snapshot_deletion_completes_after_a_crash_at_any_call, FinishesRemoval)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_boundary_that_is_not_named_is_told(judged: Any) -> None:
    outcome = judged(crashes.a_creation_completes_once_after_a_crash_at_any_call, lambda: memory.storage(calls=()))

    assert outcome.state is CheckState.SKIPPED
    assert "no call through the boundary was recorded" in outcome.text


def test_the_report_says_how_many_points_were_met(judged: Any) -> None:
    outcome = judged(crashes.a_clone_completes_once_after_a_crash_at_any_call, MemoryBackend)

    assert [note.rstrip("0123456789") for note in outcome.notes] == ["clone_volume dies, calls tried: "] * 2


def test_deaths_are_not_tried_at_calls_that_only_look(judged: Any, fails: Any) -> None:
    def looking(**given: Any) -> Any:
        return lambda kind=MemoryBackend: memory.storage(kind, read_only_calls=("fetch", "total_size"), **given)

    everywhere, fewer = (
        [
            int(note.rpartition(" ")[2])
            for note in judged(crashes.a_clone_completes_once_after_a_crash_at_any_call, storage).notes
        ]
        for storage in (MemoryBackend, looking())
    )

    assert all(0 < few < many for few, many in zip(fewer, everywhere, strict=True))
    fails(
        crashes.a_snapshot_completes_once_after_a_crash_at_any_call, lambda: looking()(CutAnew), "new resources"
    )  # what is left is seen all the same


def test_an_operation_of_too_many_calls_is_loud(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_sweep, "MAX_CALLS", 2)

    fails(
        crashes.a_clone_completes_once_after_a_crash_at_any_call, MemoryBackend, "clone_volume makes more than 2 calls"
    )
