"""Snapshots on EBS: one per name although EC2 has no client tokens for them, and their state as EC2 reports it."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SizeRange,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Timeout,
    Unavailable,
    Volume,
)
from csi_multi.core import idempotent

from . import fake_ec2_moto
from .backend_requests import GIB, GONE, A, B, Connect, snapshot_request, tags, volume_request
from .fake_ec2 import FOREVER, FakeEc2, looks, seconds
from .thread_helpers import run_together

FAST = "fastSnapshotRestoreAvailabilityZones"


@pytest.fixture
def origin(ebs: EbsBackend) -> Volume:
    return ebs.create_volume(volume_request(size=SizeRange(required=3 * GIB)))


def taken(ebs: EbsBackend, request: SnapshotRequest) -> Snapshot:
    """Cut a snapshot as the core does, which knows what to ask after AlreadyExists."""
    return idempotent.create_snapshot(ebs, request)


def fast(name: str, source: str, *zones: str) -> SnapshotRequest:
    return snapshot_request(name, source, **{FAST: ", ".join(zones)})


def snapshots(cloud: FakeEc2) -> list[str]:
    return [one for one in cloud.everything() if one.startswith("snap-")]


def held(handle: str) -> Any:
    """Return what EC2 has of a snapshot, past every delay."""
    return next(store.snapshots[handle] for store in fake_ec2_moto.stores() if handle in store.snapshots)


# One per name.


def test_a_snapshot_is_as_large_as_its_source_and_ready_when_ec2_says_so(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    cloud.takes.snapshot = seconds(3600)

    first = taken(ebs, snapshot_request("snap-1", origin.handle))

    assert (first.size, first.source, first.ready) == (3 * GIB, origin.handle, False)
    assert not taken(ebs, snapshot_request("snap-1", origin.handle)).ready
    cloud.advance(3601)
    again = taken(ebs, snapshot_request("snap-1", origin.handle))
    assert (again.ready, again.handle, again.created) == (True, first.handle, first.created)
    assert ebs.get_snapshot(first.handle) == again
    assert snapshots(cloud) == [first.handle]


def test_a_repeat_by_the_next_process_finds_the_snapshot(connect: Connect, cloud: FakeEc2, origin: Volume) -> None:
    first = taken(connect(), snapshot_request("snap-1", origin.handle))

    assert taken(connect(), snapshot_request("snap-1", origin.handle)).handle == first.handle
    assert cloud.calls["CreateSnapshot"] == 1


def test_a_snapshot_whose_answer_is_lost_and_that_shows_late_is_cut_once(
    connect: Connect, cloud: FakeEc2, origin: Volume
) -> None:
    ebs = connect(consistency_seconds=5, max_attempts=8)
    cloud.takes.appearing = looks(2)
    cloud.drop("CreateSnapshot", after_effect=True)

    with pytest.raises(Unavailable):
        taken(ebs, snapshot_request("snap-1", origin.handle))
    for _ in range(2):
        with pytest.raises(Unavailable, match="does not show it yet"):
            taken(ebs, snapshot_request("snap-1", origin.handle))
    found = taken(ebs, snapshot_request("snap-1", origin.handle))
    assert snapshots(cloud) == [found.handle]
    assert cloud.calls["CreateSnapshot"] == 1


def test_a_snapshot_that_was_answered_and_shows_late_is_cut_once(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    cloud.takes.appearing = seconds(2)
    first = taken(ebs, snapshot_request("snap-1", origin.handle))

    with pytest.raises(Unavailable, match=f"was created as '{first.handle}'"):
        taken(ebs, snapshot_request("snap-1", origin.handle))
    time.sleep(2)
    assert taken(ebs, snapshot_request("snap-1", origin.handle)).handle == first.handle
    assert snapshots(cloud) == [first.handle]


# One per name, also when another process takes over.


@pytest.mark.parametrize("standby", [False, True])
def test_the_process_that_takes_over_makes_no_second_snapshot_though_the_first_shows_late(
    connect: Connect, cloud: FakeEc2, origin: Volume, standby: bool
) -> None:
    """A standby has been there for longer than EC2 is late: its sidecar becomes the leader."""
    after = connect(consistency_seconds=1.5)
    if standby:
        time.sleep(1.5)
    cloud.takes.appearing = seconds(1)
    first = taken(connect(), snapshot_request("snap-1", origin.handle))

    assert taken(after, snapshot_request("snap-1", origin.handle)).handle == first.handle
    assert snapshots(cloud) == [first.handle]
    assert cloud.calls["CreateSnapshot"] == 1


def test_a_snapshot_that_shows_is_returned_at_once_while_a_new_one_waits(
    connect: Connect, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(connect(), snapshot_request("snap-1", origin.handle))
    after = connect(consistency_seconds=60)
    waits = snapshot_request("snap-2", origin.handle)

    ended: list[str] = []

    def wait() -> None:
        with pytest.raises(Unavailable, match="'snap-2' may have been created by another process just before"):
            taken(after, dataclasses.replace(waits, deadline=time.monotonic() + 4))
        ended.append("snap-2")

    def find() -> None:
        assert taken(after, snapshot_request("snap-1", origin.handle)).handle == first.handle
        ended.append("snap-1")

    started = time.monotonic()
    assert run_together(wait, find) == [None, None]
    assert time.monotonic() - started < 30
    assert ended == ["snap-1", "snap-2"]
    assert snapshots(cloud) == [first.handle]


def test_only_the_first_snapshots_of_a_process_are_looked_for_again(
    connect: Connect, cloud: FakeEc2, origin: Volume
) -> None:
    ebs = connect(consistency_seconds=1)
    started = time.monotonic()
    taken(ebs, snapshot_request("snap-1", origin.handle))
    assert time.monotonic() - started >= 1
    assert cloud.calls["DescribeSnapshots"] > 2
    cloud.calls.clear()

    taken(ebs, snapshot_request("snap-2", origin.handle))
    assert cloud.calls["DescribeSnapshots"] == 2  # before it is created and afterwards


def test_when_no_snapshot_came_of_a_lost_call_another_is_cut(connect: Connect, cloud: FakeEc2, origin: Volume) -> None:
    ebs = connect(consistency_seconds=2)
    cloud.drop("CreateSnapshot")
    with pytest.raises(Unavailable):
        taken(ebs, snapshot_request("snap-1", origin.handle))
    time.sleep(2)

    later = taken(ebs, snapshot_request("snap-1", origin.handle))
    assert snapshots(cloud) == [later.handle]


def test_of_two_processes_that_cut_at_once_the_oldest_snapshot_stays(
    connect: Connect, cloud: FakeEc2, origin: Volume
) -> None:
    first = cloud.client().create_snapshot(VolumeId=origin.handle)["SnapshotId"]
    ebs = connect()
    cloud.slow("CreateSnapshot", 0.0, after_effect=True)

    def tagged_meanwhile(_snapshot: str, _volume: str) -> None:
        cloud.on_snapshot = None
        ours = [{"Key": key, "Value": value} for key, value in tags(cloud, _snapshot).items()]
        cloud.client().create_tags(Resources=[first], Tags=ours)

    cloud.on_snapshot = tagged_meanwhile

    assert taken(ebs, snapshot_request("snap-1", origin.handle)).handle == first
    assert snapshots(cloud) == [first]


def test_the_later_snapshot_of_two_is_deleted_by_the_retry_though_the_lookup_after_it_failed(
    connect: Connect, cloud: FakeEc2, origin: Volume
) -> None:
    """Its id was never reported, and no other process knows that."""
    first = cloud.client().create_snapshot(VolumeId=origin.handle)["SnapshotId"]
    ebs = connect(wait_seconds=2)
    faults = []

    def tagged_meanwhile(snapshot: str, _volume: str) -> None:
        cloud.on_snapshot = None
        ours = [{"Key": key, "Value": value} for key, value in tags(cloud, snapshot).items()]
        cloud.client().create_tags(Resources=[first], Tags=ours)
        faults.append(cloud.drop("DescribeSnapshots", times=math.inf))

    cloud.on_snapshot = tagged_meanwhile
    with pytest.raises(Unavailable):
        taken(ebs, snapshot_request("snap-1", origin.handle))
    faults[0].times = 0

    assert taken(ebs, snapshot_request("snap-1", origin.handle)).handle == first
    assert snapshots(cloud) == [first]


def test_a_name_that_was_cut_of_another_volume_is_taken(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    other = ebs.create_volume(volume_request("pvc-2"))
    taken(ebs, snapshot_request("snap-1", origin.handle))

    with pytest.raises(AlreadyExists, match="its source is volume"):
        taken(ebs, snapshot_request("snap-1", other.handle))


def test_a_name_can_be_used_again_after_deletion(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    ebs.delete_snapshot(first.handle, {})

    second = taken(ebs, snapshot_request("snap-1", origin.handle))

    assert snapshots(cloud) == [second.handle] != [first.handle]


def test_a_snapshot_that_was_deleted_and_still_shows_is_not_taken_for_one_of_the_name(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    cloud.takes.vanishing = FOREVER
    ebs.delete_snapshot(first.handle, {})

    second = taken(ebs, snapshot_request("snap-1", origin.handle))

    assert snapshots(cloud) == [second.handle] != [first.handle]
    assert ebs.find_snapshot("snap-1").handle == second.handle


@pytest.mark.parametrize("restarted", [False, True])
def test_a_snapshot_that_failed_after_it_was_told_is_never_replaced(
    connect: Connect, cloud: FakeEc2, origin: Volume, restarted: bool
) -> None:
    ebs = connect()
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    held(first.handle).status = "error"
    later = connect() if restarted else ebs

    with pytest.raises(FailedPrecondition, match=f"'{first.handle}' and has failed.*delete the VolumeSnapshot"):
        taken(later, snapshot_request("snap-1", origin.handle))
    assert not later.get_snapshot(first.handle).ready
    assert (snapshots(cloud), cloud.calls["CreateSnapshot"]) == ([first.handle], 1)


def test_a_failed_snapshot_is_deleted_by_its_handle_and_then_its_name_is_free(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    held(first.handle).status = "error"

    idempotent.delete_snapshot(ebs, first.handle, {})

    assert snapshots(cloud) == []
    assert taken(ebs, snapshot_request("snap-1", origin.handle)).handle != first.handle


def test_a_snapshot_that_failed_before_anybody_heard_of_it_is_replaced_by_the_retry(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            fake_ec2_moto.Snapshot, "status", property(lambda _: "error", lambda _one, _new: None), raising=False
        )
        with pytest.raises(Unavailable, match="could not create snapshot"):
            taken(ebs, snapshot_request("snap-1", origin.handle))
    assert snapshots(cloud) == []

    later = taken(ebs, snapshot_request("snap-1", origin.handle))
    assert snapshots(cloud) == [later.handle]


@pytest.mark.parametrize(
    ("code", "error"),
    [("SnapshotCreationPerVolumeRateExceeded", Busy), ("UnauthorizedOperation", PermissionDenied)],
)
def test_a_refused_cut_leaves_no_doubt_behind(
    connect: Connect, cloud: FakeEc2, origin: Volume, code: str, error: type[StorageError]
) -> None:
    ebs = connect(consistency_seconds=2)
    cloud.fail("CreateSnapshot", code)

    with pytest.raises(error):
        taken(ebs, snapshot_request("snap-1", origin.handle))
    assert taken(ebs, snapshot_request("snap-1", origin.handle))


def test_what_is_not_there_or_not_ours_is_not_cut(ebs: EbsBackend, connect: Connect, cloud: FakeEc2) -> None:
    theirs = connect("other").create_volume(volume_request())

    with pytest.raises(NotFound):
        taken(ebs, snapshot_request("snap-1", GONE))
    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        taken(ebs, snapshot_request("snap-1", theirs.handle))
    assert snapshots(cloud) == []


def test_the_source_is_told_also_when_it_is_gone(connect: Connect, cloud: FakeEc2, origin: Volume) -> None:
    ebs = connect()
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    ebs.delete_volume(origin.handle, {})

    assert connect().get_snapshot(first.handle).source == origin.handle
    assert taken(connect(), snapshot_request("snap-1", origin.handle)).handle == first.handle


# Deletion.


def test_only_what_carries_our_tags_is_deleted(ebs: EbsBackend, connect: Connect, cloud: FakeEc2) -> None:
    other = connect("other")
    theirs = taken(other, snapshot_request("snap-1", other.create_volume(volume_request()).handle))
    volume = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    by_hand = cloud.client().create_snapshot(VolumeId=volume)["SnapshotId"]

    for handle in (theirs.handle, by_hand):
        with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
            ebs.delete_snapshot(handle, {})
    assert len(snapshots(cloud)) == 2


def test_a_snapshot_that_an_image_needs_is_in_use(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    cloud.fail("DeleteSnapshot", "InvalidSnapshot.InUse")

    with pytest.raises(InUse):
        ebs.delete_snapshot(first.handle, {})


def test_what_does_not_exist_is_not_found(ebs: EbsBackend) -> None:
    for handle in ("snap-00000000000000000", "snap-1", "x", GONE):
        with pytest.raises(NotFound):
            ebs.get_snapshot(handle)
        with pytest.raises(NotFound):
            ebs.delete_snapshot(handle, {})


# Fast restores.


def test_fast_restores_are_asked_for_in_every_zone(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    first = taken(ebs, fast("snap-1", origin.handle, A, B))

    assert cloud.fast_restores == {first.handle: {A, B}}


def test_zones_that_the_region_lacks_are_refused_before_anything_is_cut(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    with pytest.raises(InvalidArgument, match="us-east-1a is not in the region"):
        taken(ebs, fast("snap-1", origin.handle, A, "us-east-1a"))
    assert cloud.calls["CreateSnapshot"] == 0


def test_fast_restores_that_are_refused_leave_nothing_behind(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    cloud.fail("EnableFastSnapshotRestores", "UnauthorizedOperation", status=403)

    with pytest.raises(PermissionDenied, match="EnableFastSnapshotRestores"):
        taken(ebs, fast("snap-1", origin.handle, A))
    assert snapshots(cloud) == []
    second = taken(ebs, fast("snap-1", origin.handle, A))
    assert cloud.fast_restores == {second.handle: {A}}


def test_fast_restores_that_are_refused_with_a_snapshot_that_stays_are_not_final(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    cloud.fail("EnableFastSnapshotRestores", "UnauthorizedOperation", status=403)
    cloud.fail("DeleteSnapshot", "InternalError")

    with pytest.raises(Unavailable, match="could not be deleted either"):
        taken(ebs, fast("snap-1", origin.handle, A))
    assert len(snapshots(cloud)) == 1


def test_throttled_fast_restores_keep_the_snapshot_and_are_asked_for_again(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    cloud.fail("EnableFastSnapshotRestores", "RequestLimitExceeded", times=2)
    wish = fast("snap-1", origin.handle, A)

    for _ in range(2):
        with pytest.raises(Unavailable):
            taken(ebs, wish)
        assert len(snapshots(cloud)) == 1
    first = taken(ebs, wish)

    assert (snapshots(cloud), cloud.fast_restores) == ([first.handle], {first.handle: {A}})
    assert cloud.calls["CreateSnapshot"] == 1


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "FastSnapshotRestoreLimitExceeded", "UnauthorizedOperation"])
def test_a_snapshot_that_was_reported_is_never_deleted_by_a_retry(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume, code: str
) -> None:
    wish = fast("snap-1", origin.handle, A)
    first = taken(ebs, wish)
    cloud.fail("EnableFastSnapshotRestores", code)

    with pytest.raises(Unavailable, match=f"'{first.handle}' exists, but its fast restore"):
        taken(ebs, wish)
    assert snapshots(cloud) == [first.handle]


# Many at once.


def test_many_snapshots_share_their_looks(connect: Connect, cloud: FakeEc2, origin: Volume) -> None:
    ebs = connect(wait_seconds=30)
    cloud.calls.clear()

    done = run_together(
        *[lambda name=name: taken(ebs, snapshot_request(f"snap-{name}", origin.handle)) for name in range(20)]
    )

    assert {one.handle for one in done if isinstance(one, Snapshot)} == set(snapshots(cloud))
    assert cloud.calls["CreateSnapshot"] == 20
    assert cloud.calls["DescribeSnapshots"] + cloud.calls["DescribeVolumes"] <= 15


# Deadlines.


def test_a_lookup_that_hangs_ends_with_the_callers_patience(connect: Connect, cloud: FakeEc2, origin: Volume) -> None:
    ebs = connect(wait_seconds=2)
    cloud.takes.snapshot = FOREVER
    cloud.slow("DescribeSnapshots", 60)
    started = time.monotonic()

    with pytest.raises(Timeout):
        taken(ebs, snapshot_request("snap-1", origin.handle))
    assert time.monotonic() - started < 40
