"""Backends with snapshots that change, vanish or lie about themselves, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from csi_multi_testing.checks import snapshots
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import AlreadyExists, InUse, Snapshot, SnapshotRequest, Strings, VolumeRequest, leaf


class Telling(MemoryBackend):
    """What it says about snapshots: the defects below are there."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return self.reported(super().create_snapshot(request))

    def get_snapshot(self, handle: str) -> Snapshot:
        return self.reported(super().get_snapshot(handle))


class Hoarder(MemoryBackend):
    """Deletes nothing."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self.get_snapshot(handle)


class Anonymous(Telling):
    """Forgets what it was cut from."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, source="")


class Prefix(MemoryBackend):
    """Finds by the beginning of a name."""

    def find_snapshot(self, name: str) -> Snapshot:
        for snapshot in self.storage.snapshots.values():
            if snapshot.stamp.name.startswith(name):
                return snapshot
        return super().find_snapshot(name)


class Moving(Telling):
    """Its creation time is when this process saw it first."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        seen = vars(self).setdefault("seen", {})
        return replace(snapshot, created=seen.setdefault(snapshot.handle, datetime.now(UTC)))


class Copying(MemoryBackend):
    """Cuts another one for a name that is taken."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        try:
            return super().create_snapshot(request)
        except AlreadyExists:
            return super().create_snapshot(replace(request, stamp=replace(request.stamp, name=f"{request.name}-2")))


class Lenient(MemoryBackend):
    """Takes any volume for one that exists."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = Snapshot(
            handle=leaf(request.name), source=request.source, size=4096, created=datetime.now(UTC), stamp=request.stamp
        )
        return self.storage.snapshots.setdefault(made.handle, made)


class Hasty(MemoryBackend):
    """Makes room before it looks for the volume."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self.storage.data[f"@{request.name}.new"] = {}
        return super().create_snapshot(request)


class Naive(Telling):
    """Tells a time without a zone."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, created=snapshot.created.replace(tzinfo=None))


class Local(Telling):
    """Takes local time for universal time."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, created=snapshot.created + timedelta(hours=2))


class Timeless(Telling):
    """Does not know when."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, created=datetime.fromtimestamp(0, UTC))


class Unmeasured(Telling):
    """Does not know its size."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, size=0)


class Optimistic(Telling):
    """Tells the bytes that it takes, which are not enough."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, size=8192)

    def restore_volume(self, request: VolumeRequest) -> Any:
        assert request.source
        return self._put(request, default=self.storage.snapshots[request.source.handle].size)


class Live(MemoryBackend):
    """A snapshot is the volume under another name."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        self.storage.data[f"@{made.handle}"] = self.storage.data.setdefault(made.source, {})
        return made


class Chained(MemoryBackend):
    """What was written since an older snapshot goes with that."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        gone = self.get_snapshot(handle)
        super().delete_snapshot(handle, secrets)
        for later in self.storage.snapshots.values():
            if later.source == gone.source and later.created > gone.created:
                self.storage.data[f"@{later.handle}"] = {}


class Cascading(MemoryBackend):
    """Deletes a volume with its snapshots."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(handle, secrets)
        for snapshot in list(self.storage.snapshots.values()):
            if snapshot.source == handle:
                self.delete_snapshot(snapshot.handle, secrets)


class TooLate(MemoryBackend):
    """Removes the data before it finds out that there are snapshots."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if any(one.source == handle for one in self.storage.snapshots.values()):
            self.storage.data.pop(handle, None)
            raise InUse(f"{handle} has snapshots")
        super().delete_volume(handle, secrets)


class Orphaned(MemoryBackend):
    """Cannot restore a snapshot whose volume is gone."""

    def restore_volume(self, request: VolumeRequest) -> Any:
        assert request.source
        self.get_volume(self.get_snapshot(request.source.handle).source)
        return super().restore_volume(request)


class Inheriting(MemoryBackend):
    """Knows the volume of a snapshot by its name only."""

    def _rename_source(self, handle: str) -> None:
        pass


class ClockOnTheWall(MemoryBackend):
    """Takes the local time for universal time."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        local = replace(made, created=datetime.now().replace(tzinfo=UTC))
        self.storage.snapshots[made.handle] = local
        return local


class ReadsLocally(Telling):
    """Stores a local time without its zone, and reads it as one."""

    def reported(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, created=snapshot.created.replace(tzinfo=None).astimezone(UTC))


BROKEN = [
    (snapshots.a_snapshot_can_be_created_found_and_deleted, Hoarder, "get_snapshot after delete_snapshot: succeeded"),
    (snapshots.a_snapshot_can_be_created_found_and_deleted, Anonymous, "the source: found ''"),
    (snapshots.an_unknown_snapshot_is_not_found, Prefix, "a name that was never used"),
    (snapshots.a_repeated_request_gets_the_same_snapshot, Moving, "create_snapshot, repeated after a restart"),
    (snapshots.a_repeated_request_gets_the_same_snapshot, Copying, "create_snapshot, repeated: found"),
    (
        snapshots.another_volume_under_the_name_of_a_snapshot_is_a_conflict,
        Copying,
        "the contract requires AlreadyExists",
    ),
    (snapshots.a_snapshot_of_a_deleted_volume_is_refused, Lenient, "succeeded, the contract requires NotFound"),
    (snapshots.a_snapshot_of_a_deleted_volume_is_refused, Hasty, "refused, but the storage changed"),
    (snapshots.a_snapshot_has_its_creation_time, Naive, "the contract requires a time with a time zone"),
    (snapshots.a_snapshot_has_its_creation_time, Local, "which is in the future"),
    (snapshots.a_snapshot_has_its_creation_time, Timeless, "before the request"),
    (snapshots.the_size_of_a_snapshot_is_enough_to_restore_it, Unmeasured, "Snapshot.size is 0, the contract requires"),
    (snapshots.the_size_of_a_snapshot_is_enough_to_restore_it, Optimistic, "with exactly that size: raised OutOfRange"),
    (snapshots.a_snapshot_keeps_its_data_when_its_volume_is_written, Live, "restored: the first block differs"),
    (snapshots.deleting_a_snapshot_keeps_the_data_of_others, Chained, "then a volume restored from another"),
    (
        snapshots.deleting_a_volume_keeps_its_snapshots_or_is_refused,
        Cascading,
        "served, then get_snapshot: raised NotFound",
    ),
    (snapshots.deleting_a_volume_keeps_its_snapshots_or_is_refused, TooLate, "refused, but the storage changed"),
    (snapshots.deleting_a_volume_keeps_its_snapshots_or_is_refused, Orphaned, "then restore_volume: raised NotFound"),
    (snapshots.a_volume_made_anew_has_no_snapshot_of_an_earlier_one, Inheriting, ", the new volume"),
    (
        snapshots.a_volume_restored_under_its_old_name_has_no_snapshot_of_the_earlier_one,
        Inheriting,
        ", the new volume",
    ),
    (
        snapshots.the_creation_time_of_a_snapshot_is_the_same_in_every_time_zone,
        ClockOnTheWall,
        "create_snapshot in the time zone KIT-14",
    ),
    (
        snapshots.the_creation_time_of_a_snapshot_is_the_same_in_every_time_zone,
        ReadsLocally,
        "in the time zone KIT",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
