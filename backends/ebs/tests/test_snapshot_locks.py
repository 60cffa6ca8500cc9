"""Locked snapshots: what a class may ask for, what a lost answer leaves behind, and what a deletion says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import SnapshotParameters

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    Snapshot,
    SnapshotRequest,
    Unavailable,
    Volume,
)
from csi_multi.contract.params import parse
from csi_multi.core import idempotent

from .backend_requests import A, Connect, snapshot_request, volume_request
from .fake_ec2 import FOREVER, FakeEc2

GOVERNANCE = {"lockMode": "governance", "lockDuration": "7"}
COMPLIANCE = {"lockMode": "compliance", "lockExpirationDate": "2130-12-31T23:59:59Z", "lockCoolOffPeriod": "24"}


@pytest.fixture
def origin(ebs: EbsBackend) -> Volume:
    return ebs.create_volume(volume_request())


def taken(ebs: EbsBackend, request: SnapshotRequest) -> Snapshot:
    """Create a snapshot as the core does, which knows what to ask after AlreadyExists."""
    return idempotent.create_snapshot(ebs, request)


def locked(name: str, source: str, **given: str) -> SnapshotRequest:
    return snapshot_request(name, source, **(given or GOVERNANCE))


def test_a_snapshot_is_locked_as_its_class_says(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    days = taken(ebs, locked("snap-1", origin.handle))
    date = taken(ebs, locked("snap-2", origin.handle, **COMPLIANCE))

    assert cloud.locks[days.handle]["lockState"] == "governance"
    assert cloud.locks[date.handle]["lockState"] == "compliance-cooloff"
    assert cloud.locks[date.handle]["lockExpiresOn"].startswith("2130-12-31T23:59:59")


def test_without_a_lock_in_its_class_a_snapshot_is_not_locked(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    first = taken(ebs, snapshot_request("snap-1", origin.handle))

    assert cloud.locks == {}
    assert cloud.calls["DescribeLockedSnapshots"] == 0
    ebs.delete_snapshot(first.handle, {})


def test_a_snapshot_that_is_still_pending_is_locked(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    cloud.takes.snapshot = FOREVER

    first = taken(ebs, locked("snap-1", origin.handle))

    assert not first.ready
    assert first.handle in cloud.locks


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lockMode": "strict", "lockDuration": "7"}, "'lockMode'"),
        ({"lockMode": "governance"}, "needs either 'lockDuration' or 'lockExpirationDate'"),
        ({**COMPLIANCE, "lockDuration": "7"}, "needs either 'lockDuration' or 'lockExpirationDate'"),
        ({**GOVERNANCE, "lockCoolOffPeriod": "24"}, "for 'lockMode: compliance' only"),
        ({**COMPLIANCE, "lockCoolOffPeriod": "73"}, "'lockCoolOffPeriod'"),
        ({"lockDuration": "7"}, "'lockDuration' has no effect without 'lockMode'"),
        ({**GOVERNANCE, "lockDuration": "0"}, "'lockDuration'"),
        ({**GOVERNANCE, "lockDuration": "36501"}, "'lockDuration'"),
        ({**GOVERNANCE, "lockDuration": "a week"}, "'lockDuration'"),
        ({"lockMode": "governance", "lockExpirationDate": "2130-12-31"}, "'lockExpirationDate'"),
        ({"lockMode": "governance", "lockExpirationDate": "2130-12-31T23:59:59"}, "'lockExpirationDate'"),
    ],
)
def test_a_class_whose_lock_ec2_would_refuse_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse(SnapshotParameters, given, "parameters")


def test_a_class_whose_date_is_over_creates_nothing(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    over = (datetime.now(UTC) - timedelta(days=1)).isoformat()

    with pytest.raises(InvalidArgument, match=r"'lockExpirationDate': .* is over"):
        taken(ebs, locked("snap-1", origin.handle, lockMode="governance", lockExpirationDate=over))
    assert cloud.calls["CreateSnapshot"] == 0


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InvalidSnapshot.NotFound"])
def test_a_lock_that_ec2_cannot_set_yet_is_set_by_the_repeated_request(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume, code: str
) -> None:
    cloud.fail("LockSnapshot", code)
    request = locked("snap-1", origin.handle)

    with pytest.raises(Unavailable):
        taken(ebs, request)
    assert cloud.locks == {}
    first = taken(ebs, request)

    assert list(cloud.locks) == [first.handle]
    assert cloud.calls["CreateSnapshot"] == 1


def test_a_process_that_dies_before_the_lock_leaves_it_to_the_next_one(
    connect: Connect, cloud: FakeEc2, origin: Volume
) -> None:
    cloud.drop("LockSnapshot")
    with pytest.raises(Unavailable):
        taken(connect(zones=(A,)), locked("snap-1", origin.handle))

    first = taken(connect(zones=(A,)), locked("snap-1", origin.handle))

    assert list(cloud.locks) == [first.handle]
    assert cloud.calls["CreateSnapshot"] == 1


def test_a_lock_that_is_refused_leaves_no_unlocked_snapshot(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    cloud.fail("LockSnapshot", "UnauthorizedOperation", status=403)

    with pytest.raises(PermissionDenied, match="LockSnapshot"):
        taken(ebs, locked("snap-1", origin.handle))
    assert [one for one in cloud.everything() if one.startswith("snap-")] == []


def test_a_lock_comes_after_everything_that_may_be_refused(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    """A locked snapshot could not be deleted."""
    cloud.fail("EnableFastSnapshotRestores", "UnauthorizedOperation", status=403)

    with pytest.raises(PermissionDenied, match="EnableFastSnapshotRestores"):
        taken(ebs, locked("snap-1", origin.handle, **GOVERNANCE, fastSnapshotRestoreAvailabilityZones=A))
    assert [one for one in cloud.everything() if one.startswith("snap-")] == []


def test_a_lock_that_was_changed_or_has_ended_is_left_alone_by_a_repeated_request(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(ebs, locked("snap-1", origin.handle))
    cloud.locks[first.handle]["lockState"] = "expired"

    assert taken(ebs, locked("snap-1", origin.handle)).handle == first.handle
    assert cloud.calls["LockSnapshot"] == 1


def test_a_reported_snapshot_stays_when_its_lock_is_refused_later(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(ebs, locked("snap-1", origin.handle))
    cloud.locks.clear()
    cloud.fail("LockSnapshot", "UnauthorizedOperation", status=403)

    with pytest.raises(Unavailable, match=f"'{first.handle}' exists, but its lock could not be set"):
        taken(ebs, locked("snap-1", origin.handle))
    assert first.handle in cloud.everything()


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("governance", "unlock it with 'aws ec2 unlock-snapshot'"),
        ("compliance-cooloff", "unlock it with 'aws ec2 unlock-snapshot'"),
        ("compliance", "nobody can unlock it"),
    ],
)
def test_the_deletion_of_a_locked_snapshot_says_until_when_it_is_locked(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume, state: str, remedy: str
) -> None:
    first = taken(ebs, locked("snap-1", origin.handle, **COMPLIANCE))
    cloud.locks[first.handle]["lockState"] = state

    with pytest.raises(FailedPrecondition, match=rf"is locked \({state}\) until 2130-12-31T23:59:59.*; {remedy}"):
        ebs.delete_snapshot(first.handle, {})
    assert first.handle in cloud.everything()
    cloud.locks[first.handle]["lockState"] = "expired"
    ebs.delete_snapshot(first.handle, {})
    assert first.handle not in cloud.everything()


def test_a_lock_is_recognized_whatever_code_ec2_has_for_it(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    first = taken(ebs, locked("snap-1", origin.handle))
    cloud.fail("DeleteSnapshot", "SomethingNew", message="The snapshot is locked.")

    with pytest.raises(FailedPrecondition, match="is locked"):
        ebs.delete_snapshot(first.handle, {})


def test_a_deletion_that_is_refused_for_another_reason_keeps_that_reason(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(ebs, snapshot_request("snap-1", origin.handle))
    cloud.fail("DeleteSnapshot", "UnauthorizedOperation", status=403)

    with pytest.raises(PermissionDenied, match="DeleteSnapshot"):
        ebs.delete_snapshot(first.handle, {})


def test_where_locks_cannot_be_looked_up_the_refusal_of_the_deletion_is_the_answer(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    first = taken(ebs, locked("snap-1", origin.handle))
    cloud.fail("DescribeLockedSnapshots", "UnauthorizedOperation", status=403)

    with pytest.raises(PermissionDenied, match="DeleteSnapshot"):
        ebs.delete_snapshot(first.handle, {})
