"""Backends that give wrong answers or change stamps, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import stamps
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    AlreadyExists,
    GroupSnapshot,
    GroupSnapshotRequest,
    InvalidArgument,
    NotFound,
    Page,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    Source,
    Stamp,
    Strings,
    Volume,
    VolumeRequest,
)

from .test_conflicts import Obliging
from .test_names import Searching


class CutObliging(MemoryBackend):
    """Answers a taken name with the snapshot that is there."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        try:
            return super().create_snapshot(request)
        except AlreadyExists:
            return self.find_snapshot(request.name)


class Polite(MemoryBackend):
    """Says that it has deleted what was not there."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if handle in self.storage.volumes:
            super().delete_volume(handle, secrets)


class Lasting(MemoryBackend):
    """Finds what was deleted in a copy of the names."""

    def find_volume(self, name: str) -> Volume:
        rows = self.storage.__dict__.setdefault("copy", {})
        rows.update(self.storage.volumes)
        found: Volume | None = rows.get(self.leaf(name))
        return found or super().find_volume(name)


class Kept(MemoryBackend):
    """Keeps of a stamp what `kept` makes of it."""

    def kept(self, context: Strings) -> Strings:
        raise NotImplementedError

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        stamp = replace(made.stamp, context=self.kept(made.stamp.context))
        self.storage.volumes[made.handle] = replace(made, stamp=stamp)
        return made


class Sparing(Kept):
    """Drops values that are empty."""

    def kept(self, context: Strings) -> Strings:
        return {key: value for key, value in context.items() if value}


class Hurried(MemoryBackend):
    """Reads the digest of a source alone."""

    def source_stamp(self, source: Source) -> Stamp:
        return replace(super().source_stamp(source), context={}, name="")


class Believing(MemoryBackend):
    """Takes the stamp of a source from memory."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.seen = {**getattr(self, "seen", {}), self.leaf(request.name): request.stamp}
        return super().create_volume(request)

    def source_stamp(self, source: Source) -> Stamp:
        return self.seen.get(source.handle) or super().source_stamp(source)


class Ascii(Kept):
    """Keeps what fits into a tag."""

    def kept(self, context: Strings) -> Strings:
        return {key: value.encode("ascii", "ignore").decode() for key, value in context.items()}


class Listed(MemoryBackend):
    """Lists volumes without reading their stamps."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        items = [replace(one, stamp=replace(one.stamp, digest="", context={})) for one in found.items]
        return replace(found, items=tuple(items))


class Unstored(MemoryBackend):
    """Has the stamp in memory."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.contexts: dict[str, Strings] = {}

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        self.contexts[made.handle] = made.stamp.context
        return made

    def get_volume(self, handle: str) -> Volume:
        found = super().get_volume(handle)
        return replace(found, stamp=replace(found.stamp, context=self.contexts.get(handle, {})))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        return replace(found, items=tuple(self.get_volume(one.handle) for one in found.items))


class Tagging(MemoryBackend):
    """Hands metadata on to a storage that is particular about tags."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if any(not key or len(value) > 200 for key, value in request.metadata.items()):
            raise InvalidArgument("a tag is malformed")
        return super().create_volume(request)


class Mixing(MemoryBackend):
    """Keeps the metadata among what the stamp holds."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        context = {**request.stamp.context, **request.metadata}
        return super().create_volume(replace(request, stamp=replace(request.stamp, context=context)))


class Wary(MemoryBackend):
    """Raises the wrong class for a name that is taken."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists as error:
            raise InvalidArgument(str(error)) from None


class Nothing(MemoryBackend):
    """Has None for a name that is not taken."""

    def find_volume(self, name: str) -> Any:
        try:
            return super().find_volume(name)
        except NotFound:
            return None


class Clipped(MemoryBackend):
    """Keeps of a stamp's context what fits into one tag of 255 bytes."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        context = {key: value[:255] for key, value in request.stamp.context.items()}
        return super().create_volume(replace(request, stamp=replace(request.stamp, context=context)))


class Undigested(MemoryBackend):
    """Keeps the name and the owner of a snapshot."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return super().create_snapshot(replace(request, stamp=replace(request.stamp, digest="")))

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        return super().create_group_snapshot(replace(request, stamp=replace(request.stamp, digest="")))


class UndigestedLater(MemoryBackend):
    """Answers with the stamp that it got, and keeps less."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        self.storage.snapshots[made.handle] = replace(made, stamp=replace(made.stamp, digest=""))
        return made

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        self.storage.groups[made.handle] = replace(made, stamp=replace(made.stamp, digest=""))
        return made


class CopiesLabels(MemoryBackend):
    """Copies the label of the source with its data, and changes what it knows of."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if not request.source:
            return made
        origin = self.storage.snapshots.get(request.source.handle)
        handle = origin.source if origin else request.source.handle
        stamp = replace(made.stamp, context=self.storage.volumes[handle].stamp.context)
        self.storage.volumes[made.handle] = replace(made, stamp=stamp)
        return made


BROKEN = [
    (stamps.the_stamp_of_a_clone_is_its_own, CopiesLabels, "the stamp of get_volume: .context"),
    (stamps.the_stamp_of_a_restored_volume_is_its_own, CopiesLabels, "the stamp of get_volume: .context"),
    (stamps.the_largest_stamp_comes_back_unchanged, Clipped, "the stamp of get_volume"),
    (
        stamps.creating_under_a_taken_name_raises_already_exists,
        Obliging,
        "succeeded, the contract requires AlreadyExists",
    ),
    (stamps.creating_under_a_taken_name_raises_already_exists, Wary, "raised InvalidArgument"),
    (stamps.restoring_under_a_taken_name_raises_already_exists, Obliging, "restore_volume with a taken name"),
    (
        stamps.cloning_under_a_taken_name_raises_already_exists,
        Obliging,
        "clone_volume with a taken name: succeeded",
    ),
    (
        stamps.a_snapshot_under_a_taken_name_raises_already_exists,
        CutObliging,
        "create_snapshot with a taken name: succ",
    ),
    (stamps.deleting_a_volume_twice_raises_not_found, Polite, "delete_volume, a second time: succeeded"),
    (
        stamps.deleting_a_volume_twice_raises_not_found,
        Believing,
        "source_stamp of a volume that was deleted: succeeded",
    ),
    (stamps.an_unknown_name_is_not_found, Searching, "a name that was never used"),
    (stamps.an_unknown_name_is_not_found, Nothing, "a name that was never used"),
    (stamps.an_unknown_name_is_not_found, Lasting, "find_volume after delete_volume: succeeded"),
    (stamps.a_stamp_comes_back_unchanged, Sparing, "the stamp of get_volume: .context['empty'] is None"),
    (stamps.a_stamp_comes_back_unchanged, Hurried, "source_stamp of a volume: .name is ''"),
    (stamps.a_stamp_comes_back_unchanged, Ascii, "the stamp of get_volume: .context['ünïcode'] is"),
    (stamps.a_stamp_comes_back_unchanged, Listed, "the stamp of list_volumes: [0].digest is ''"),
    (stamps.a_stamp_comes_back_unchanged, Unstored, "the stamp of get_volume after a restart"),
    (
        stamps.unusual_metadata_does_not_change_the_volume,
        Tagging,
        "unusual metadata: raised InvalidArgument (a tag is malformed)",
    ),
    (
        stamps.unusual_metadata_does_not_change_the_volume,
        Mixing,
        "the stamp of create_volume to unusual metadata",
    ),
    (stamps.the_stamp_of_a_snapshot_comes_back_unchanged, Undigested, "the stamp of create_snapshot: .digest is ''"),
    (stamps.the_stamp_of_a_snapshot_comes_back_unchanged, Hurried, "source_stamp of a snapshot: .name is ''"),
    (stamps.the_stamp_of_a_snapshot_comes_back_unchanged, UndigestedLater, "the stamp of get_snapshot: .digest is ''"),
    (stamps.the_stamp_of_a_group_comes_back_unchanged, Undigested, "the stamp of create_group_snapshot: .digest is"),
    (stamps.the_stamp_of_a_group_comes_back_unchanged, UndigestedLater, "the stamp of get_group_snapshot: .digest"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
